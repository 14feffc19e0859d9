// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/netip"
	"os"
	"time"

	"github.com/gaissmai/bart"

	"github.com/sockhealth/sockhealth/internal/conn"
)

// Limits of a policy. MaxRules, MaxPrefixes and MaxPeers are those of the BPF
// programs (SH_MAX_* in sockhealth.h).
const (
	MaxSize     = 1 << 20 // bytes of a policy file
	MaxRules    = 64      // rules of one prefix, its ancestors' included
	MaxPrefixes = 16384   // prefixes of one policy, as Compile counts them
	MaxPeers    = 1024    // peers of one policy
)

// Policy is a policy file that was found right. The zero value matches nothing.
type Policy struct {
	// File is the name it was parsed under.
	File string
	// Revision is a short hash of the file's content: 12 hexadecimal digits.
	Revision string
	// Text is the file's content.
	Text string
	// Limits bound what is closed. The zero value is nobody's: Parse fills it in.
	Limits Limits
	// Peers stand in the order of the file. Rule.Peer is an index into it.
	Peers []Peer

	prefixes []Prefix
	table    *bart.Table[[]Rule]
	// warnings by whether the kernel has TCP_RTO_MAX_MS.
	warnings map[bool][]*Error
}

// Peer is one entry of the file with the defaults filled in.
type Peer struct {
	// Name is unique in the file and fit for a metric's label.
	Name string
	// Line is where the entry starts in the file.
	Line int
	// Options are the values the sockets get. KeepAlive is always true.
	Options conn.Options
	Probe   Probe
	// InFlight says what bounds data in flight.
	InFlight InFlight
	// Override says what becomes of what the application sets.
	Override Override
	// LeaveExisting leaves connections alone that were not seen to open: those
	// that are older than the agent, or of another cgroup (existing: ignore).
	LeaveExisting bool
	// KernelSockets manages the kernel's own connections, too: those of NFS, SMB or
	// nvme-tcp, which no process has open (kernel_sockets: manage).
	KernelSockets bool
	// Observe decides and records but closes nothing (action: observe).
	Observe bool
	// CloseSilentAfter is how long a call may stay without payload although
	// the path answers; 0: for ever.
	CloseSilentAfter time.Duration
	// Silence is how long a request may stay unanswered before the connection is
	// judged without a report; 0: for ever.
	Silence time.Duration
	// ConnectTimeout bounds connect() to the peer; 0: nothing of ours does.
	ConnectTimeout time.Duration
	// AppProbe asks the application itself; nil: nobody does.
	AppProbe *AppProbe
	// Directions are the directions the entry speaks of, never 0.
	Directions Directions
	// Ports are the service's ports, sorted and apart from each other; empty
	// means every port.
	Ports []PortRange
	// CIDRs is never empty. An IPv4 prefix is never written as an IPv6 one.
	CIDRs []CIDR
	// Except are taken out of CIDRs, each inside at least one of them.
	Except []CIDR
}

// Probe says how long, and how often, a connection is asked before it is
// condemned.
type Probe struct {
	Window   time.Duration // whole milliseconds, at least Attempts x 500 ms
	Attempts int           // at least 1
}

// Override says what becomes of the options that an application sets. The
// values are those of the BPF programs.
type Override uint8

// Overrides.
const (
	Tighten Override = 0 // the application may only shorten
	Enforce Override = 1 // the policy's values, whatever the application asks
	Allow   Override = 2 // the application's values where it sets any
)

// AppProbe is a question to the application at the peer's address, on a new
// connection. Any answer is life.
type AppProbe struct {
	// Kind is AppHTTP, AppGRPC or AppSend.
	Kind AppKind
	// Port to ask; 0: the port of the connection in question.
	Port uint16
	// Path is what AppHTTP gets, "/" where the file names none.
	Path string
	// Service is what AppGRPC asks grpc.health.v1 about, "" the server itself.
	Service string
	// Send is what AppSend writes; any byte back is an answer.
	Send []byte
	// Timeout is how long the answer may take, connecting not included.
	Timeout time.Duration
	// CloseHung closes a connection whose application stays silent
	// (on_hung: close); else that is only recorded (on_hung: none).
	CloseHung bool
}

// AppKind is a kind of application probe.
type AppKind string

// The kinds, as the file names them.
const (
	AppHTTP AppKind = "http"
	AppGRPC AppKind = "grpc"
	AppSend AppKind = "send"
)

// MinSpacing is the least time between two attempts: a Linux peer answers the
// out-of-window segments of one connection no more often
// (net.ipv4.tcp_invalid_ratelimit).
const MinSpacing = 500 * time.Millisecond

// AnswerIn returns the time that an attempt has to be answered on a connection with this
// smoothed round trip.
func AnswerIn(roundTrip time.Duration) time.Duration { return max(answerTime, 2*roundTrip) }

// answerTime is the least time that the last attempt has to be answered. It is
// shorter than MinSpacing, so that even the shortest window spaces its attempts
// by a little more than the peer's limit: of two that arrive a tick too close
// the second stays unanswered.
const answerTime = 400 * time.Millisecond

// Schedule returns the window that is kept on a connection with this smoothed
// round trip, and the time from one attempt to the next. The last attempt
// leaves early enough that its answer, too, comes within the window.
func (p Probe) Schedule(roundTrip time.Duration) (window, spacing time.Duration) {
	gaps := time.Duration(p.Attempts - 1)
	answer := AnswerIn(roundTrip)
	window = max(p.Window, 4*roundTrip+MinSpacing, gaps*MinSpacing+answer)
	if gaps == 0 {
		return window, window
	}
	return window, (window - answer) / gaps
}

// CIDR is a prefix and where it stands in the file.
type CIDR struct {
	Prefix       netip.Prefix
	Line, Column int
}

// PortRange is an inclusive range of ports.
type PortRange struct {
	Lo, Hi uint16
}

// String returns "7100" or "7100-7199".
func (r PortRange) String() string {
	if r.Lo == r.Hi {
		return fmt.Sprint(r.Lo)
	}
	return fmt.Sprintf("%d-%d", r.Lo, r.Hi)
}

// Directions is a set of conn.Direction values, bit by bit as in the BPF
// programs.
type Directions uint8

// Both holds outbound and inbound connections.
const Both = Directions(conn.Outbound) | Directions(conn.Inbound)

// Has reports whether the set holds one direction.
func (d Directions) Has(one conn.Direction) bool { return d&Directions(one) != 0 }

// String returns "outbound", "inbound", "both" or "none".
func (d Directions) String() string {
	switch d {
	case 0:
		return "none"
	case Both:
		return "both"
	}
	return conn.Direction(d).String()
}

// Parse reads a policy. The file name is used in messages only. An error is
// always an *Errors with every mistake that was found; mistakes of YAML's own
// syntax end the search at the first.
func Parse(filename string, b []byte) (*Policy, error) {
	d := &decoder{file: filename}
	f := d.read(b)
	if f != nil {
		d.check(f)
	}
	if len(d.errs.List) > 0 {
		d.errs.sort()
		return nil, &d.errs
	}
	sum := sha256.Sum256(b)
	p := &Policy{File: filename, Revision: hex.EncodeToString(sum[:6]), Text: string(b), Limits: f.limits.final()}
	for _, e := range f.peers {
		p.Peers = append(p.Peers, e.peer())
		p.warn(e)
	}
	p.index()
	return p, nil
}

// Load reads and parses the file at path. It reads no more than MaxSize bytes;
// a larger file is ErrTooLarge. A file that was read but is not right gives an
// *Errors.
func Load(path string) (*Policy, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read policy: %w", err)
	}
	defer file.Close()
	b, err := io.ReadAll(io.LimitReader(file, MaxSize+1))
	if err != nil {
		return nil, fmt.Errorf("read policy: %w", err)
	}
	if len(b) > MaxSize {
		return nil, fmt.Errorf("read policy %q: %w: more than %d bytes", path, ErrTooLarge, MaxSize)
	}
	return Parse(path, b)
}
