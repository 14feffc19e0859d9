// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
)

// Word is a verdict, the same in the API, the CLI, the metrics and the log.
type Word string

// The verdicts. Only DeadPath condemns a connection.
const (
	// Alive: payload came since the call was sent and the last segment is
	// younger than a second, or answered a probe.
	Alive Word = "alive"
	// LocalUnread: the answer waits in this host's receive queue.
	LocalUnread Word = "local_unread"
	// AliveSlow: no payload since the call, but the probe was answered or
	// the peer acknowledged more bytes meanwhile.
	AliveSlow Word = "alive_slow"
	// DeadPath: no probe was answered within the window and nothing came.
	DeadPath Word = "dead_path"
	// ClosedByPeer: a RST or FIN came; the kernel has done the rest.
	ClosedByPeer Word = "closed_by_peer"
	// LocalFault: this host has no way out to the peer.
	LocalFault Word = "local_fault"
	// Unknown: cannot be judged, for a reason.
	Unknown Word = "unknown"
	// Unmanaged: no policy is in force on the connection.
	Unmanaged Word = "unmanaged"
	// Gone: the socket ended, or its tuple belongs to another one.
	Gone Word = "gone"
)

// Words lists every verdict, in the order of the documentation.
func Words() []Word {
	return []Word{Alive, LocalUnread, AliveSlow, DeadPath, ClosedByPeer, LocalFault, Unknown, Unmanaged, Gone}
}

// The reasons that go with some verdicts.
const (
	ReasonMPTCP        = "mptcp"         // unknown: the subflow is not the connection
	ReasonMD5OrAO      = "md5_or_ao"     // unknown: our segment would lack the signature
	ReasonRepair       = "repair"        // unknown: being checkpointed
	ReasonProbeBlocked = "probe_blocked" // unknown: this host refused to send our segment
	ReasonProbeFailed  = "probe_failed"  // unknown: the attempts of the policy could not all be made
	ReasonOlder        = "older"         // unmanaged: opened before the programs were attached
	ReasonNoPolicy     = "no_policy"     // unmanaged: no policy names the peer
	ReasonNotFound     = "not_found"     // gone: no such socket
	ReasonEnded        = "ended"         // gone: closed by its application
	ReasonBound        = "bound"         // gone: the kernel's own bound ended it
	ReasonDestroyed    = "destroyed"     // gone: closed from outside meanwhile
	ReasonOrphan       = "orphan"        // dead_path: closed by its application already
	ReasonNoRoute      = "no_route"      // local_fault
	ReasonNoCarrier    = "no_carrier"    // local_fault
)

// Verdict is a decision. The zero value means: undecided, probe the peer.
type Verdict struct {
	Word   Word
	Reason string
}

// Condemns reports whether the verdict calls for closing the socket; one that
// its application has closed already needs no closing.
func (v Verdict) Condemns() bool { return v.Word == DeadPath && v.Reason == "" }

// End says how a socket ended that is no longer found.
type End uint8

// Ends, as the kernel's close event tells them.
const (
	EndUnknown   End = iota // no event came
	EndClosed               // by the application, or by FIN
	EndReset                // RST
	EndBound                // keepalive or user timeout
	EndDestroyed            // SOCK_DESTROY
)

// Look is one look at the socket.
type Look struct {
	// Found is false where no socket has that identity; Snapshot is then empty.
	Found    bool
	Snapshot conn.Snapshot
	// Ended says how it went where it is not found.
	Ended End
}

// Probe is what became of the in-path probe.
type Probe struct {
	// Done says that probing ended: answered, or the whole window passed.
	Done bool
	// Sent counts the attempts this host accepted for sending, the kernel's
	// keepalives included; Wanted is how many the policy demands.
	Sent, Wanted int
	// Blocked, NoRoute: at least one attempt was refused so.
	Blocked, NoRoute bool
	// Window is the effective window.
	Window time.Duration
}

// Input is everything a decision rests on.
type Input struct {
	// Sent is when the call was written, on CLOCK_MONOTONIC.
	Sent time.Duration
	// Unmanaged is the reason why no policy is in force on the connection:
	// ReasonNoPolicy or ReasonOlder; "" where one is.
	Unmanaged string
	// Before is the look at the report, After the look at the end of the
	// probe. Without Probe.Done After is not read.
	Before, After Look
	Probe         Probe
}

const (
	// fresh is how young the last segment must be to stand for itself.
	fresh = time.Second
	// tick is the longest tick of a Linux kernel (HZ=100). A stamp that is
	// not a tick younger than the call may be older than the call.
	tick = 10 * time.Millisecond
)

// Decide returns the verdict, or the zero Verdict where the evidence of the
// first look does not suffice and the peer has to be probed.
func Decide(in Input) Verdict {
	if v := standing(in.Before, in.Unmanaged); v.Word != "" {
		return v
	}
	if !in.Probe.Done {
		return first(&in.Before.Snapshot, in.Sent)
	}
	if !in.After.Found {
		return ended(in.After.Ended)
	}
	if v := standing(in.After, in.Unmanaged); v.Word != "" {
		return v
	}
	return last(in)
}

// standing decides what needs no payload and no probe: identity, policy, state.
func standing(l Look, unmanaged string) Verdict {
	s := &l.Snapshot
	switch {
	case !l.Found:
		return Verdict{Gone, ReasonNotFound}
	case unmanaged == ReasonNoPolicy:
		return Verdict{Unmanaged, ReasonNoPolicy}
	case s.State.PeerFinished():
		return Verdict{Word: ClosedByPeer}
	case !s.State.Judgeable():
		return Verdict{Gone, ReasonEnded}
	case s.MPTCP:
		return Verdict{Unknown, ReasonMPTCP}
	case s.MD5OrAO:
		return Verdict{Unknown, ReasonMD5OrAO}
	case s.Repair:
		return Verdict{Unknown, ReasonRepair}
	case unmanaged != "":
		return Verdict{Unmanaged, unmanaged}
	}
	return Verdict{}
}

// first decides on the look at the report alone.
func first(s *conn.Snapshot, sent time.Duration) Verdict {
	if !PayloadSince(s, sent) {
		return Verdict{}
	}
	if s.Unread() > 0 {
		return Verdict{Word: LocalUnread}
	}
	if s.PacketAge < fresh {
		return Verdict{Word: Alive}
	}
	return Verdict{}
}

// last decides after the probe, on a socket that still stands.
func last(in Input) Verdict {
	before, after := &in.Before.Snapshot, &in.After.Snapshot
	heard := Heard(before, after)
	payload := PayloadSince(after, in.Sent)
	switch {
	case payload && after.Unread() > 0:
		return Verdict{Word: LocalUnread}
	case payload && heard:
		return Verdict{Word: Alive}
	case heard:
		return Verdict{Word: AliveSlow}
	case !after.DstDevUp:
		return Verdict{LocalFault, ReasonNoCarrier}
	case in.Probe.NoRoute:
		return Verdict{LocalFault, ReasonNoRoute}
	case in.Probe.Blocked:
		return Verdict{Unknown, ReasonProbeBlocked}
	case in.Probe.Sent < in.Probe.Wanted:
		return Verdict{Unknown, ReasonProbeFailed}
	}
	if after.Orphan {
		// Nobody waits for it; the bound ends it, and before Linux 6.11 to
		// destroy it would leak it (kernel-facts C5).
		return Verdict{Word: DeadPath, Reason: ReasonOrphan}
	}
	return Verdict{Word: DeadPath}
}

// ended names what took the socket away while it was being probed.
func ended(e End) Verdict {
	switch e {
	case EndReset:
		return Verdict{Word: ClosedByPeer}
	case EndBound:
		return Verdict{Gone, ReasonBound}
	case EndDestroyed:
		return Verdict{Gone, ReasonDestroyed}
	}
	return Verdict{Gone, ReasonEnded}
}

// Heard reports whether anything at all came from the peer between two looks:
// an acceptable segment in a later tick, or a counter that advanced.
func Heard(before, after *conn.Snapshot) bool {
	return after.PacketStamp != before.PacketStamp ||
		after.BytesReceived != before.BytesReceived ||
		after.BytesAcked != before.BytesAcked
}

// PayloadSince reports whether payload came after the call was sent. The
// handshake and a FIN are no payload.
func PayloadSince(s *conn.Snapshot, sent time.Duration) bool {
	return s.PayloadReceived() > 0 && s.Taken-s.DataAge > sent+tick
}
