// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
)

// Cause says why a connection ended, as the kernel saw it.
type Cause uint8

// Causes. The kernel's counters have one slot for each, in this order.
const (
	CauseNormal    = Cause(sockopsShCauseSH_CAUSE_NORMAL)    // FIN, or closed by the application
	CauseReset     = Cause(sockopsShCauseSH_CAUSE_RESET)     // RST from the peer
	CauseIdle      = Cause(sockopsShCauseSH_CAUSE_IDLE)      // bound reached with nothing in flight
	CauseInFlight  = Cause(sockopsShCauseSH_CAUSE_IN_FLIGHT) // bound reached with data unacknowledged
	CauseDestroyed = Cause(sockopsShCauseSH_CAUSE_DESTROYED) // SOCK_DESTROY, ours or somebody else's
	CauseOther     = Cause(sockopsShCauseSH_CAUSE_OTHER)     // another error
	causes         = int(sockopsShCauseSH_CAUSE_MAX)

	// CauseConnect: the bound of connect() ended it. No connection was made, and
	// none is counted.
	CauseConnect = Cause(sockopsShCauseSH_CAUSE_CONNECT)
)

// String returns the cause as metrics and log spell it.
func (c Cause) String() string {
	switch c {
	case CauseNormal:
		return "normal"
	case CauseReset:
		return "reset"
	case CauseIdle:
		return "idle_bound"
	case CauseInFlight:
		return "in_flight_bound"
	case CauseDestroyed:
		return "destroyed"
	case CauseOther:
		return "other"
	case CauseConnect:
		return "connect_bound"
	}
	return fmt.Sprintf("cause_%d", uint8(c))
}

// Event is what the programs tell of one connection.
type Event struct {
	conn.ID
	// Stall says that it is the first retransmission timeout of a stall;
	// else the connection closed, by a bound, a reset, a destroy or an error, or
	// was not made (CauseConnect).
	Stall         bool
	Time          time.Duration // CLOCK_MONOTONIC
	Cause         Cause         // CauseNormal in a stall
	Errno         unix.Errno    // what the application sees, 0: none
	Policy        uint32        // id; see InForce
	Cgroup        uint64        // id of the cgroup that the socket belongs to, 0: not known
	Direction     conn.Direction
	BytesReceived uint64 // payload, without a FIN's byte
	BytesAcked    uint64
	Retransmits   uint8
	ProbesOut     uint8
}

// Events streams the events to fn, one after the other, until Close of the
// returned stream. fn must not block for long: what the ring cannot hold is
// counted as lost (Faults).
func (p *Programs) Events() (*Stream, error) {
	r, err := ringbuf.NewReader(p.sockops.ShEvents)
	if err != nil {
		return nil, fmt.Errorf("open event stream: %w", err)
	}
	return &Stream{r: r}, nil
}

// Stream reads events. It is for one goroutine; Close may come from another.
type Stream struct {
	r   *ringbuf.Reader
	rec ringbuf.Record
}

// Next waits for an event. After Close it returns an error that wraps ErrClosed.
func (s *Stream) Next() (Event, error) {
	err := s.r.ReadInto(&s.rec)
	if errors.Is(err, os.ErrClosed) {
		return Event{}, fmt.Errorf("read event: %w", ErrClosed)
	}
	if err != nil {
		return Event{}, fmt.Errorf("read event: %w", err)
	}
	return decodeEvent(s.rec.RawSample)
}

// Close ends a Next that waits.
func (s *Stream) Close() error { return s.r.Close() }

// ErrEvent says that an event has a shape this build does not know.
var ErrEvent = errors.New("malformed event")

// decodeEvent turns one struct sh_event into an Event.
func decodeEvent(b []byte) (Event, error) {
	var e sockopsShEvent
	if len(b) < binary.Size(e) {
		return Event{}, fmt.Errorf("decode event: %w: %d bytes", ErrEvent, len(b))
	}
	if _, err := binary.Decode(b, binary.NativeEndian, &e); err != nil {
		return Event{}, fmt.Errorf("decode event: %w: %w", ErrEvent, err)
	}
	kind := sockopsShEventType(e.Type)
	if kind != sockopsShEventTypeSH_EVENT_CLOSE && kind != sockopsShEventTypeSH_EVENT_STALL {
		return Event{}, fmt.Errorf("decode event: %w: type %d", ErrEvent, e.Type)
	}
	if Cause(e.Cause) > CauseConnect {
		return Event{}, fmt.Errorf("decode event: %w: cause %d", ErrEvent, e.Cause)
	}
	return Event{
		ID: conn.ID{
			Netns: e.Netns, Family: e.Family, Cookie: e.Cookie,
			Local: addrPort(e.Local, e.LocalPort), Remote: addrPort(e.Remote, e.RemotePort),
		},
		Stall: kind == sockopsShEventTypeSH_EVENT_STALL,
		Time:  time.Duration(e.TimeNs), Cause: Cause(e.Cause), Errno: unix.Errno(e.Err),
		Policy: e.Policy, Cgroup: e.Cgroup, Direction: conn.Direction(e.Direction),
		BytesReceived: e.BytesReceived, BytesAcked: e.BytesAcked,
		Retransmits: e.Retransmits, ProbesOut: e.ProbesOut,
	}, nil
}
