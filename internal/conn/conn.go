// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"fmt"
	"net/netip"
	"time"
)

// ID names exactly one socket. A 4-tuple alone does not: the kernel reuses
// tuples, and two network namespaces may hold the same one at the same time.
// The zero value names nothing.
type ID struct {
	// Netns is the inode number of the network namespace, as in
	// /proc/PID/ns/net.
	Netns uint32
	// Family is the socket's own, unix.AF_INET or unix.AF_INET6. A socket of
	// family AF_INET6 whose peer is ::ffff:a.b.c.d speaks IPv4 on the wire:
	// its addresses below are the IPv4 ones and Mapped reports true.
	Family uint8
	// Ifindex is the device the socket is bound to (SO_BINDTODEVICE), 0 for none.
	Ifindex uint32
	// Local and Remote are the addresses of the packets: an IPv4-mapped
	// address is always unmapped, and there is never a zone.
	Local, Remote netip.AddrPort
	// Cookie is the kernel's SO_COOKIE, unique on this host since boot. 0 means
	// "not known"; such an ID is good for a look, never for a close.
	Cookie uint64
}

// Mapped reports whether an AF_INET6 socket carries IPv4.
func (id ID) Mapped() bool {
	return id.Family == 10 && id.Remote.Addr().Is4()
}

// String is for logs and messages: "10.91.1.2:40122 -> 10.91.2.2:7100 cookie 71 netns 4026532281".
func (id ID) String() string {
	return fmt.Sprintf("%s -> %s cookie %d netns %d", id.Local, id.Remote, id.Cookie, id.Netns)
}

// State is the kernel's TCP state (include/net/tcp_states.h).
type State uint8

// The states a look-up can return.
const (
	Established State = 1
	SynSent     State = 2
	SynRecv     State = 3
	FinWait1    State = 4
	FinWait2    State = 5
	TimeWait    State = 6
	Close       State = 7
	CloseWait   State = 8
	LastAck     State = 9
	Listen      State = 10
	Closing     State = 11
	NewSynRecv  State = 12
)

var stateNames = [...]string{
	Established: "established", SynSent: "syn_sent", SynRecv: "syn_recv",
	FinWait1: "fin_wait1", FinWait2: "fin_wait2", TimeWait: "time_wait",
	Close: "close", CloseWait: "close_wait", LastAck: "last_ack",
	Listen: "listen", Closing: "closing", NewSynRecv: "new_syn_recv",
}

// String returns the state as ss(8) and the API spell it, in lower case.
func (s State) String() string {
	if int(s) < len(stateNames) && stateNames[s] != "" {
		return stateNames[s]
	}
	return fmt.Sprintf("state_%d", uint8(s))
}

// Judgeable reports whether a socket in this state carries a connection that
// can be probed and closed: ESTABLISHED, CLOSE_WAIT, FIN_WAIT1 and FIN_WAIT2
// (kernel-facts C6).
func (s State) Judgeable() bool {
	switch s {
	case Established, CloseWait, FinWait1, FinWait2:
		return true
	}
	return false
}

// Connecting reports whether the handshake has not come to its end.
func (s State) Connecting() bool {
	switch s {
	case SynSent, SynRecv, NewSynRecv:
		return true
	}
	return false
}

// PeerFinished reports whether the peer's FIN has been received.
func (s State) PeerFinished() bool {
	switch s {
	case CloseWait, LastAck, Closing, TimeWait:
		return true
	}
	return false
}

// Direction says who opened a connection.
type Direction uint8

// Directions. The values are those of the BPF programs.
const (
	DirectionUnknown Direction = 0
	Outbound         Direction = 1
	Inbound          Direction = 2
)

// String returns "outbound", "inbound" or "unknown".
func (d Direction) String() string {
	switch d {
	case Outbound:
		return "outbound"
	case Inbound:
		return "inbound"
	}
	return "unknown"
}

// Options are the five socket options that bound a connection, and the limit that
// stands in for the last of them.
type Options struct {
	KeepAlive   bool          // SO_KEEPALIVE
	Idle        time.Duration // TCP_KEEPIDLE, whole seconds; 0: the kernel's default
	Interval    time.Duration // TCP_KEEPINTVL, whole seconds; 0: the kernel's default
	Count       int           // TCP_KEEPCNT; 0: the kernel's default
	UserTimeout time.Duration // TCP_USER_TIMEOUT, whole milliseconds; 0: none
	// RTOMax is TCP_RTO_MAX_MS, in tenths of a second; 0: the kernel's default, or
	// more than 25.5 s, which no policy asks for.
	RTOMax time.Duration
}

// Record is what the programs stored in the socket when it opened, or when it was
// adopted.
type Record struct {
	// Policy is the id of the policy in force, as the loader numbered it.
	Policy    uint32
	Direction Direction
	// Opened is the time on CLOCK_MONOTONIC at which the record was made.
	Opened time.Duration
	// Policed are the values of the policy, App what the application last
	// asked for (zero fields: it never asked), Effective what is set.
	Policed, App, Effective Options
	// Adopted says that the connection was open before the programs saw it:
	// Opened is the time of its adoption and Direction is inferred. Ambiguous
	// says that the inference is not certain: it is bounded, and nobody closes it.
	Adopted, Ambiguous bool
	// Pending says that not all is set yet that Policed and App ask for, or not
	// all is put back of a connection that no policy names any more (Releasing).
	Pending, Releasing bool
	// Provoked says that TCP_KEEPIDLE is the prober's for now, and not Effective's.
	Provoked bool
	// Room is the Count that the prober has set, so that the keepalives it provoked bring
	// the kernel's own end no nearer; Effective's comes back when the peer is heard. 0: none.
	Room int
	// Guarded says that the peer does not read and that UserTimeout, and for the time
	// RTOMax, are the guard's: Effective's come back when it reads, or stops answering.
	Guarded bool
}

// Snapshot is one look at a socket. Its fields are read without the socket's
// lock: a decision takes two.
type Snapshot struct {
	ID
	// Taken is the moment of the look on CLOCK_MONOTONIC.
	Taken time.Duration
	State State
	// UID owns the socket, in the initial user namespace.
	UID uint32
	// Cgroup is the id of the cgroup v2 that the socket belongs to, which is the
	// one that its process was in when it made the socket (kernel-facts S10): the
	// inode number of its directory. 0: this kernel does not tell (before 5.15).
	Cgroup uint64

	BytesReceived uint64 // in-order payload since the handshake; a FIN adds one
	BytesAcked    uint64 // what the peer has acknowledged; a SYN of ours and a FIN add one each
	SndUna        uint32 // sequence number of the oldest unacknowledged byte
	SndNxt        uint32 // next sequence number to send
	WriteSeq      uint32 // sequence number after the last byte the application wrote
	RcvNxt        uint32 // next sequence number expected from the peer
	CopiedSeq     uint32 // sequence number after the last byte the application read
	SndWnd        uint32 // bytes the peer lets us send; 0: zero window
	RcvWnd        uint32 // bytes we let the peer send
	RcvWScale     uint8  // shift of the window field in segments we send

	// DataAge is the time since payload last came, PacketAge since any
	// acceptable segment came. Both have the resolution of a jiffy and both
	// start at the handshake: with BytesReceived 0 no payload ever came.
	DataAge, PacketAge time.Duration
	// SendAge is the time since payload was last sent, retransmissions
	// included; a keepalive is none. It starts at the handshake: with NeverSent no
	// payload was ever sent (a FIN, or a SYN without data, is none).
	SendAge   time.Duration
	NeverSent bool
	// DataStamp and AckStamp are the kernel's ticks of the last payload and of
	// the last acknowledgement. Between two looks one of them changes exactly
	// when an acceptable segment came in a later tick.
	DataStamp, AckStamp uint32
	// Locked says that a process held the socket's lock at the moment of the
	// look: what comes meanwhile waits in the backlog, which Backlog says is
	// not empty, and shows in no counter.
	Locked, Backlog bool
	SRTT            time.Duration // smoothed round trip, 0: not measured
	Retransmits     uint8         // consecutive retransmission timeouts
	ProbesOut       uint8         // unanswered keepalives or window probes
	// Timer is how long it takes until the kernel asks by itself while data waits: it
	// retransmits, or probes a window that is shut. 65.535 s stands for anything longer,
	// 0 for: it is not about to, or this kernel does not tell.
	Timer time.Duration

	MPTCP, MD5OrAO, Repair bool
	// Orphan says that no process has the socket open any more; the kernel
	// still delivers what was written, or gives up at the bound.
	Orphan bool
	// Kernel says that the kernel uses the socket itself (NFS, nvme-tcp), or that a
	// server of its own is to accept it; the policy may manage it all the same.
	Kernel bool
	// Timestamps says that the connection uses TCP timestamps (RFC 7323); the
	// next segment then carries CLOCK_MONOTONIC in milliseconds (microseconds
	// where TimestampUsec) plus TSOffset, and echoes TSRecent.
	Timestamps, TimestampUsec bool
	TSOffset, TSRecent        uint32

	Mark      uint32 // SO_MARK
	TxHash    uint32 // flow hash: multipath choice and IPv6 flow label follow it
	FlowLabel uint32 // of IPv6, as its application or flowlabel_reflect set it; 0: by TxHash
	TOS       uint8  // IP_TOS or IPV6_TCLASS
	DstDev    uint32 // ifindex of the device the connection leaves by, 0: no cached route
	DstDevUp  bool   // that device is up and has a carrier; true where DstDev is 0
	SrcDev    uint32 // ifindex of the device its packets last came in by, 0: not known
	IPsec     bool   // its namespace has IPsec policies for packets that leave
	Options   Options
	Record    Record
	HasRecord bool // false: the sockops program has never seen this socket
}

// InFlight reports whether bytes were sent, or wait to be sent, that the peer
// has not acknowledged. The kernel sends no keepalive then (kernel-facts T4).
func (s *Snapshot) InFlight() bool { return s.WriteSeq != s.SndUna }

// Unacked returns the payload bytes that were written and not acknowledged, Unsent
// those among them that were not sent yet, not even in vain. The sequence number
// that our FIN takes is not counted: it is the last one, and acknowledged from
// FIN_WAIT2 on.
func (s *Snapshot) Unacked() uint32 { return s.payload(s.WriteSeq - s.SndUna) }

// Unsent is explained with Unacked.
func (s *Snapshot) Unsent() uint32 { return s.payload(s.WriteSeq - s.SndNxt) }

// payload takes our FIN from the bytes up to WriteSeq, where it stands among them.
func (s *Snapshot) payload(n uint32) uint32 {
	switch s.State {
	case FinWait1, LastAck, Closing:
		if n > 0 {
			n--
		}
	}
	return n
}

// Unread returns the bytes that wait in this host's receive queue. The
// sequence number that a FIN takes is not counted.
func (s *Snapshot) Unread() uint32 {
	n := s.RcvNxt - s.CopiedSeq
	if n > 0 && s.State.PeerFinished() {
		n--
	}
	return n
}

// PayloadAcked returns the payload bytes that the peer has acknowledged, without
// the ones that our SYN and FIN add.
func (s *Snapshot) PayloadAcked() uint64 {
	n := s.BytesAcked
	if n > 0 && s.HasRecord && s.Record.Direction == Outbound {
		n--
	}
	if n > 0 && s.State == FinWait2 {
		n--
	}
	return n
}

// PayloadReceived returns the payload bytes received since the handshake,
// without the one that a FIN adds (kernel-facts L6).
func (s *Snapshot) PayloadReceived() uint64 {
	if s.BytesReceived > 0 && s.State.PeerFinished() {
		return s.BytesReceived - 1
	}
	return s.BytesReceived
}
