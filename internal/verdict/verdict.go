// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
)

// Word is a verdict, the same in the API, the CLI, the metrics and the log.
type Word string

// The verdicts. DeadPath condemns a connection, AliveHung where the policy says
// so, AliveSlow past the policy's last limit.
const (
	// Alive: payload came since the call was sent and the last segment is
	// younger than a second, or answered a probe.
	Alive Word = "alive"
	// LocalUnread: the answer waits in this host's receive queue.
	LocalUnread Word = "local_unread"
	// AliveSlow: no payload since the call, but the probe was answered or
	// the peer acknowledged more bytes meanwhile.
	AliveSlow Word = "alive_slow"
	// AliveHung: the probe was answered, but the application at the peer took
	// a new connection and answered not one byte on it.
	AliveHung Word = "alive_hung"
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
	return []Word{Alive, LocalUnread, AliveSlow, AliveHung, DeadPath, ClosedByPeer, LocalFault, Unknown, Unmanaged, Gone}
}

// The reasons that go with some verdicts.
const (
	ReasonMPTCP        = "mptcp"         // unknown: the subflow is not the connection
	ReasonMD5OrAO      = "md5_or_ao"     // unknown: our segment would lack the signature
	ReasonAmbiguous    = "ambiguous"     // unknown: adopted, and not certain who opened it, so that another policy may be meant
	ReasonRepair       = "repair"        // unknown: being checkpointed
	ReasonProbeBlocked = "probe_blocked" // unknown: this host refused to send our segment
	ReasonLocalLeg     = "local_leg"     // unknown: a proxy on this host answers for the peer
	ReasonLegUnknown   = "leg_unknown"   // unknown: answered, and whether by a proxy on this host could not be asked
	ReasonMultipath    = "multipath"     // unknown: the route has several next hops, and ours may not be the connection's
	ReasonUnconfirmed  = "unconfirmed"   // unknown: segments of ours stayed unanswered, and none, or too few, of the connection's own
	ReasonLocked       = "locked"        // unknown or alive_slow: its application holds the socket's lock
	ReasonConnecting   = "connecting"    // unknown: there is no connection yet; connect_timeout bounds that
	ReasonBusy         = "busy"          // unknown: too many judgements under way, or the agent is stopping
	ReasonFailed       = "failed"        // unknown: the agent could not ask the kernel; its log says why
	ReasonProbeFailed  = "probe_failed"  // unknown: the attempts of the policy could not all be made
	ReasonOlder        = "older"         // unmanaged: the programs did not see it open (older, or outside the cgroup)
	ReasonNoPolicy     = "no_policy"     // unmanaged: no policy names the peer
	ReasonNotFound     = "not_found"     // gone: no such socket
	ReasonEnded        = "ended"         // gone: closed by its application
	ReasonBound        = "bound"         // gone: the kernel's own bound ended it
	ReasonDestroyed    = "destroyed"     // gone: closed from outside meanwhile
	ReasonOrphan       = "orphan"        // dead_path: closed by its application already
	ReasonNoRoute      = "no_route"      // local_fault
	ReasonNoCarrier    = "no_carrier"    // local_fault
	ReasonSilentLimit  = "silent_limit"  // alive_slow or alive_hung: close_silent_after has passed
)

// Verdict is a decision. The zero value means: undecided, probe the peer.
type Verdict struct {
	Word   Word
	Reason string
	// Close says that the verdict condemns the socket.
	Close bool
}

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

// String returns the end as the record of a verdict spells it.
func (e End) String() string {
	return [...]string{"", "closed", "reset", "bound", "destroyed"}[e]
}

// Look is one look at the socket.
type Look struct {
	// Found is false where no socket has that identity; Snapshot is then empty.
	Found    bool
	Snapshot conn.Snapshot
	// Ended says how it went where it is not found.
	Ended End
}

// App is what became of the question to the application.
type App uint8

// Outcomes. Only AppSilent says anything against the connection.
const (
	AppNotAsked     App = iota // the policy names none, or it was not needed
	AppAnswered                // any byte, an error too
	AppNoConnection            // could not connect: proves nothing
	AppSilent                  // connected, and got not one byte
)

// String returns the outcome as the log and the API spell it.
func (a App) String() string {
	return [...]string{"", "answered", "no_connection", "silent"}[a]
}

// Probe is what became of the in-path probe.
type Probe struct {
	// Done says that probing ended: answered, or the whole window passed.
	Done bool
	// Sent counts what this host accepted for sending, the kernel's own keepalives and
	// retransmissions included: an attempt may be a keepalive and a segment of ours.
	// Wanted is the number of attempts of the policy; fewer than that condemn nothing,
	// and more may well be sent.
	Sent, Wanted int
	// Blocked, NoRoute: at least one attempt was refused so.
	Blocked, NoRoute bool
	// LinkDown: the last one refused for want of a route was so because a device of the
	// connection's is down, or has no carrier.
	LinkDown bool
	// Multipath: segments of ours may have left by another next hop than the
	// connection's. Apart: they may for another reason have been treated otherwise
	// than its own. They are not among those that Sent counts.
	Multipath, Apart bool
	// Resent: the connection's own data was retransmitted, into a window that the peer
	// took back, which the kernel does not count.
	Resent bool
	// Astray: such a segment was sent while what the connection itself had asked was
	// unanswered. Who answers then may have been asked by another way.
	Astray bool
	// LocalLeg: what answered is a proxy on this host. LegUnknown: perhaps, nobody could
	// tell.
	LocalLeg, LegUnknown bool
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
	// App is the application's part, CloseHung what its silence costs.
	App       App
	CloseHung bool
	// SilentLimit is how long a call may go without payload on a path that
	// answers; 0: for ever.
	SilentLimit time.Duration
}

const (
	// fresh is how young the last segment must be to stand for itself.
	fresh = time.Second
	// tick is the longest tick of a Linux kernel (HZ=100). A stamp that is
	// not a tick younger than the call may be older than the call.
	tick = 10 * time.Millisecond
	// transit is how long a report may take on its way: it states the age of
	// the call, so that the call seems younger by that.
	transit = 500 * time.Millisecond
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
		return Verdict{Word: Gone, Reason: ReasonNotFound}
	case unmanaged == ReasonNoPolicy:
		return Verdict{Word: Unmanaged, Reason: ReasonNoPolicy}
	case s.State.PeerFinished():
		return Verdict{Word: ClosedByPeer}
	case s.State.Connecting():
		return Verdict{Word: Unknown, Reason: ReasonConnecting}
	case !s.State.Judgeable():
		return Verdict{Word: Gone, Reason: ReasonEnded}
	case s.MPTCP:
		return Verdict{Word: Unknown, Reason: ReasonMPTCP}
	case s.MD5OrAO:
		return Verdict{Word: Unknown, Reason: ReasonMD5OrAO}
	case s.Repair:
		return Verdict{Word: Unknown, Reason: ReasonRepair}
	case unmanaged != "":
		return Verdict{Word: Unmanaged, Reason: unmanaged}
	case s.HasRecord && s.Record.Ambiguous:
		return Verdict{Word: Unknown, Reason: ReasonAmbiguous}
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
	case heard && in.Probe.LocalLeg && after.PayloadReceived() == before.PayloadReceived():
		// An answer of the proxy's is no sign of life; what it passes on is.
		return Verdict{Word: Unknown, Reason: ReasonLocalLeg}
	case heard && in.Probe.LegUnknown && after.PayloadReceived() == before.PayloadReceived():
		return Verdict{Word: Unknown, Reason: ReasonLegUnknown}
	case heard && in.Probe.Astray && after.PayloadReceived() == before.PayloadReceived() && after.BytesAcked == before.BytesAcked:
		return uncertain(in.Probe)
	case payload && heard:
		return Verdict{Word: Alive}
	case heard:
		return slow(in)
	case !after.DstDevUp, in.Probe.NoRoute && in.Probe.LinkDown:
		return Verdict{Word: LocalFault, Reason: ReasonNoCarrier}
	case in.Probe.NoRoute:
		return Verdict{Word: LocalFault, Reason: ReasonNoRoute}
	case in.Probe.Blocked:
		return Verdict{Word: Unknown, Reason: ReasonProbeBlocked}
	case in.Probe.Sent < in.Probe.Wanted && (in.Probe.Multipath || in.Probe.Apart):
		// What the kernel itself has sent took the right way, and is too little.
		return uncertain(in.Probe)
	case in.Probe.Sent < in.Probe.Wanted:
		return Verdict{Word: Unknown, Reason: ReasonProbeFailed}
	}
	if after.ProbesOut == 0 && after.Retransmits == 0 && !in.Probe.Resent {
		// Our segment may not take the connection's way, or not be what the
		// peer takes from it (TTL security, routing by port, IPsec).
		return Verdict{Word: Unknown, Reason: ReasonUnconfirmed}
	}
	if after.Locked {
		return Verdict{Word: Unknown, Reason: ReasonLocked}
	}
	if after.Orphan {
		// Nobody waits for it; the bound ends it, and before Linux 6.11 to
		// destroy it would leak it (kernel-facts C5).
		return Verdict{Word: DeadPath, Reason: ReasonOrphan}
	}
	return Verdict{Word: DeadPath, Close: true}
}

// uncertain is the verdict where it is not certain that segments of ours took the
// connection's way.
func uncertain(p Probe) Verdict {
	if p.Multipath {
		return Verdict{Word: Unknown, Reason: ReasonMultipath}
	}
	return Verdict{Word: Unknown, Reason: ReasonUnconfirmed}
}

// slow decides where the path answers and the call does not.
func slow(in Input) Verdict {
	s := &in.After.Snapshot
	switch {
	case s.Locked || s.Backlog:
		// The answer to the call may be what waits behind the lock.
		return Verdict{Word: AliveSlow, Reason: ReasonLocked}
	case s.Orphan || !CalledSince(s, in.Sent):
		return Verdict{Word: AliveSlow} // nobody waits for an answer
	}
	v := Verdict{Word: AliveSlow}
	if in.App == AppSilent {
		v = Verdict{Word: AliveHung, Close: in.CloseHung}
	}
	if in.SilentLimit > 0 && s.Taken-in.Sent >= in.SilentLimit && !v.Close {
		v.Reason, v.Close = ReasonSilentLimit, true
	}
	return v
}

// CalledSince reports whether payload was sent at or after the moment that a
// call claims: without it, no call was made on this connection. Somewhat earlier
// will do where nothing has answered it. The handshake is no payload, although the
// age counts from it.
func CalledSince(s *conn.Snapshot, sent time.Duration) bool {
	at := s.Taken - s.SendAge
	return !s.NeverSent && (at >= sent-tick || at >= sent-transit && s.DataAge >= s.SendAge)
}

// AsksApp reports whether the application's answer would make a difference: the
// path answers, the call does not.
func AsksApp(in Input) bool {
	s := &in.After.Snapshot
	return Decide(in).Word == AliveSlow && !s.Orphan && !s.Locked && CalledSince(s, in.Sent)
}

// ended names what took the socket away while it was being probed.
func ended(e End) Verdict {
	switch e {
	case EndReset:
		return Verdict{Word: ClosedByPeer}
	case EndBound:
		return Verdict{Word: Gone, Reason: ReasonBound}
	case EndDestroyed:
		return Verdict{Word: Gone, Reason: ReasonDestroyed}
	}
	return Verdict{Word: Gone, Reason: ReasonEnded}
}

// Heard reports whether anything at all came from the peer between two looks:
// an acceptable segment in a later tick, a counter that advanced, or a segment
// that waits for the process that holds the socket's lock.
func Heard(before, after *conn.Snapshot) bool {
	return after.DataStamp != before.DataStamp || after.AckStamp != before.AckStamp ||
		after.Backlog || after.BytesReceived != before.BytesReceived ||
		after.BytesAcked != before.BytesAcked
}

// PayloadSince reports whether payload came after the call was sent. The
// handshake and a FIN are no payload.
func PayloadSince(s *conn.Snapshot, sent time.Duration) bool {
	return s.PayloadReceived() > 0 && s.Taken-s.DataAge > sent+tick
}
