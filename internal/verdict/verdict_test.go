// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
)

const (
	sent = 100 * time.Second // the call
	now  = 102 * time.Second // the report
	end  = 105 * time.Second // the end of the window
)

// look is a healthy connection that last heard something at a moment.
func look(taken, data, packet time.Duration) Look {
	return Look{Found: true, Snapshot: conn.Snapshot{
		Taken: taken, State: conn.Established, HasRecord: true, DstDevUp: true,
		BytesReceived: 1000, BytesAcked: 500, RcvNxt: 7, CopiedSeq: 7,
		DataAge: taken - data, PacketAge: taken - packet, SendAge: taken - sent, AckStamp: uint32(packet / time.Millisecond), DataStamp: uint32(data / time.Millisecond),
	}}
}

// with changes the snapshot of a look.
func with(l Look, change func(*conn.Snapshot)) Look {
	change(&l.Snapshot)
	return l
}

// asked is a probe that had its full window.
var asked = Probe{Done: true, Sent: 5, Wanted: 5, Window: 3 * time.Second}

func TestFirstLook(t *testing.T) {
	quiet := look(now, 90*time.Second, 90*time.Second)
	for _, test := range []struct {
		name string
		in   Input
		want Verdict
	}{
		{"no such socket", Input{}, Verdict{Word: Gone, Reason: ReasonNotFound}},
		{"peer not in the policy", Input{Before: quiet, Unmanaged: ReasonNoPolicy}, Verdict{Word: Unmanaged, Reason: ReasonNoPolicy}},
		{"opened before the agent", Input{Before: quiet, Unmanaged: ReasonOlder}, Verdict{Word: Unmanaged, Reason: ReasonOlder}},
		{"FIN came", Input{Before: with(quiet, func(s *conn.Snapshot) { s.State = conn.CloseWait })}, Verdict{Word: ClosedByPeer}},
		{"FIN came, everything closed", Input{Before: with(quiet, func(s *conn.Snapshot) { s.State = conn.LastAck })}, Verdict{Word: ClosedByPeer}},
		{"being connected", Input{Before: with(quiet, func(s *conn.Snapshot) { s.State = conn.SynSent })}, Verdict{Word: Unknown, Reason: ReasonConnecting}},
		{"being accepted", Input{Before: with(quiet, func(s *conn.Snapshot) { s.State = conn.SynRecv })}, Verdict{Word: Unknown, Reason: ReasonConnecting}},
		{"Multipath TCP", Input{Before: with(quiet, func(s *conn.Snapshot) { s.MPTCP = true })}, Verdict{Word: Unknown, Reason: ReasonMPTCP}},
		{"not certain who opened it", Input{Before: with(quiet, func(s *conn.Snapshot) { s.HasRecord, s.Record.Ambiguous = true, true })}, Verdict{Word: Unknown, Reason: ReasonAmbiguous}},
		{"Multipath TCP without record", Input{Unmanaged: ReasonOlder, Before: with(quiet, func(s *conn.Snapshot) { s.MPTCP = true })}, Verdict{Word: Unknown, Reason: ReasonMPTCP}},
		{"signed segments", Input{Before: with(quiet, func(s *conn.Snapshot) { s.MD5OrAO = true })}, Verdict{Word: Unknown, Reason: ReasonMD5OrAO}},
		{"under repair", Input{Before: with(quiet, func(s *conn.Snapshot) { s.Repair = true })}, Verdict{Word: Unknown, Reason: ReasonRepair}},
		{"nothing since the call", Input{Before: quiet}, Verdict{}},
		{"half closed by us", Input{Before: with(quiet, func(s *conn.Snapshot) { s.State = conn.FinWait2 })}, Verdict{}},
		{"only the ACK of the request", Input{Before: look(now, 90*time.Second, sent)}, Verdict{}},
		{"payload since, just now", Input{Before: look(now, 101900*time.Millisecond, 101900*time.Millisecond)}, Verdict{Word: Alive}},
		{"payload since, then an ACK", Input{Before: look(now, 100500*time.Millisecond, 101500*time.Millisecond)}, Verdict{Word: Alive}},
		{"payload since, silent for a second", Input{Before: look(now, 101*time.Second, 101*time.Second)}, Verdict{}},
		{"payload in the tick of the call", Input{Before: look(sent+500*time.Millisecond, sent+tick, sent+tick)}, Verdict{}},
		{"fresh socket", Input{Before: with(look(now, now, now), func(s *conn.Snapshot) { s.BytesReceived = 0 })}, Verdict{}},
		{"answer unread", Input{Before: with(look(now, 100500*time.Millisecond, 100500*time.Millisecond), func(s *conn.Snapshot) { s.RcvNxt += 3 })}, Verdict{Word: LocalUnread}},
		{"unread bytes older than the call", Input{Before: with(quiet, func(s *conn.Snapshot) { s.RcvNxt += 3 })}, Verdict{}},
	} {
		test.in.Sent = sent
		if got := Decide(test.in); got != test.want {
			t.Errorf("%s: %+v, want %+v", test.name, got, test.want)
		}
	}
}

// viaProxy is asked, on a connection that a proxy of this host has taken.
var viaProxy = Probe{Done: true, Sent: 5, Wanted: 5, Window: 3 * time.Second, LocalLeg: true}

// perhapsProxy is asked, on one of which nobody knows whether a proxy has taken it.
var perhapsProxy = Probe{Done: true, Sent: 5, Wanted: 5, Window: 3 * time.Second, LegUnknown: true}

func TestAfterProbe(t *testing.T) {
	before := look(now, 90*time.Second, 95*time.Second)
	silent := with(look(end, 90*time.Second, 95*time.Second), func(s *conn.Snapshot) { s.ProbesOut = 5 })
	for _, test := range []struct {
		name  string
		after Look
		probe Probe
		want  Verdict
	}{
		{"silence", silent, asked, Verdict{Word: DeadPath, Close: true}},
		{"silence with old bytes unread", with(silent, func(s *conn.Snapshot) { s.RcvNxt++ }), asked, Verdict{Word: DeadPath, Close: true}},
		{"silence after its application closed it", with(silent, func(s *conn.Snapshot) { s.Orphan = true }), asked, Verdict{Word: DeadPath, Reason: ReasonOrphan}},
		{"only segments of ours unanswered", with(silent, func(s *conn.Snapshot) { s.ProbesOut = 0 }), asked, Verdict{Word: Unknown, Reason: ReasonUnconfirmed}},
		{"a retransmission unanswered", with(silent, func(s *conn.Snapshot) { s.ProbesOut, s.Retransmits = 0, 1 }), asked, Verdict{Word: DeadPath, Close: true}},
		{"the application holds the lock", with(silent, func(s *conn.Snapshot) { s.Locked = true }), asked, Verdict{Word: Unknown, Reason: ReasonLocked}},
		{"the answer waits behind the lock", with(silent, func(s *conn.Snapshot) { s.Locked, s.Backlog = true, true }), asked, Verdict{Word: AliveSlow, Reason: ReasonLocked}},
		{"payload alone, a stamp long ago", with(silent, func(s *conn.Snapshot) { s.DataStamp++ }), asked, Verdict{Word: AliveSlow}},
		{"probe answered", look(end, 90*time.Second, 104*time.Second), asked, Verdict{Word: AliveSlow}},
		{"answered within the tick of the first look", with(silent, func(s *conn.Snapshot) { s.AckStamp++ }), asked, Verdict{Word: AliveSlow}},
		{"upload moves on", with(silent, func(s *conn.Snapshot) { s.BytesAcked++ }), asked, Verdict{Word: AliveSlow}},
		{"answer came meanwhile", with(look(end, 104*time.Second, 104*time.Second), func(s *conn.Snapshot) { s.BytesReceived++ }), asked, Verdict{Word: Alive}},
		{"answer came, unread", with(look(end, 104*time.Second, 104*time.Second), func(s *conn.Snapshot) { s.RcvNxt++ }), asked, Verdict{Word: LocalUnread}},
		{"FIN came", with(silent, func(s *conn.Snapshot) { s.State = conn.CloseWait }), asked, Verdict{Word: ClosedByPeer}},
		{"RST came", Look{Ended: EndReset}, asked, Verdict{Word: ClosedByPeer}},
		{"the bound struck", Look{Ended: EndBound}, asked, Verdict{Word: Gone, Reason: ReasonBound}},
		{"destroyed by another", Look{Ended: EndDestroyed}, asked, Verdict{Word: Gone, Reason: ReasonDestroyed}},
		{"closed by its application", Look{Ended: EndClosed}, asked, Verdict{Word: Gone, Reason: ReasonEnded}},
		{"ended, nobody knows how", Look{}, asked, Verdict{Word: Gone, Reason: ReasonEnded}},
		{"no carrier", with(silent, func(s *conn.Snapshot) { s.DstDevUp = false }), asked, Verdict{Word: LocalFault, Reason: ReasonNoCarrier}},
		{"no route", silent, Probe{Done: true, NoRoute: true, Wanted: 5}, Verdict{Word: LocalFault, Reason: ReasonNoRoute}},
		{"no route, since the link is down", silent, Probe{Done: true, NoRoute: true, LinkDown: true, Wanted: 5}, Verdict{Word: LocalFault, Reason: ReasonNoCarrier}},
		{"no route, since the link is down, yet heard", look(end, 90*time.Second, 104*time.Second), Probe{Done: true, NoRoute: true, LinkDown: true, Wanted: 5}, Verdict{Word: AliveSlow}},
		{"our segments refused", silent, Probe{Done: true, Blocked: true, Wanted: 5, Sent: 5}, Verdict{Word: Unknown, Reason: ReasonProbeBlocked}},
		{"an attempt missing", silent, Probe{Done: true, Wanted: 5, Sent: 4}, Verdict{Word: Unknown, Reason: ReasonProbeFailed}},
		{"ours may have gone astray", silent, Probe{Done: true, Wanted: 5, Sent: 4, Multipath: true}, Verdict{Word: Unknown, Reason: ReasonMultipath}},
		{"ours may have gone astray, the kernel's own were lost as well", silent, Probe{Done: true, Wanted: 5, Sent: 5, Multipath: true}, Verdict{Word: DeadPath, Close: true}},
		{"ours may have been treated otherwise", silent, Probe{Done: true, Wanted: 5, Sent: 4, Apart: true}, Verdict{Word: Unknown, Reason: ReasonUnconfirmed}},
		{"ours may have been treated otherwise, the kernel's own were lost as well", silent, Probe{Done: true, Wanted: 5, Sent: 5, Apart: true}, Verdict{Word: DeadPath, Close: true}},
		{"ours may have gone astray, yet heard", look(end, 90*time.Second, 104*time.Second), Probe{Done: true, Wanted: 5, Multipath: true}, Verdict{Word: AliveSlow}},
		{"ours may have been answered by another way, the kernel's own were not", look(end, 90*time.Second, 104*time.Second), Probe{Done: true, Wanted: 5, Multipath: true, Astray: true}, Verdict{Word: Unknown, Reason: ReasonMultipath}},
		{"ours may have been answered otherwise, the kernel's own were not", look(end, 90*time.Second, 104*time.Second), Probe{Done: true, Wanted: 5, Apart: true, Astray: true}, Verdict{Word: Unknown, Reason: ReasonUnconfirmed}},
		{"ours may have been answered by another way, and more of the upload arrived", with(look(end, 90*time.Second, 104*time.Second), func(s *conn.Snapshot) { s.BytesAcked++ }), Probe{Done: true, Wanted: 5, Multipath: true, Astray: true}, Verdict{Word: AliveSlow}},
		{"ours may have been answered by another way, and payload came", with(look(end, 104*time.Second, 104*time.Second), func(s *conn.Snapshot) { s.BytesReceived++ }), Probe{Done: true, Wanted: 5, Multipath: true, Astray: true}, Verdict{Word: Alive}},
		{"a proxy on this host answered", look(end, 90*time.Second, 104*time.Second), viaProxy, Verdict{Word: Unknown, Reason: ReasonLocalLeg}},
		{"perhaps a proxy on this host answered", look(end, 90*time.Second, 104*time.Second), perhapsProxy, Verdict{Word: Unknown, Reason: ReasonLegUnknown}},
		{"perhaps one passed payload on", with(look(end, 104*time.Second, 104*time.Second), func(s *conn.Snapshot) { s.BytesReceived++ }), perhapsProxy, Verdict{Word: Alive}},
		{"a proxy on this host took more of the upload", with(silent, func(s *conn.Snapshot) { s.BytesAcked++ }), viaProxy, Verdict{Word: Unknown, Reason: ReasonLocalLeg}},
		{"a proxy on this host answered, payload came before", look(end, 101*time.Second, 104*time.Second), viaProxy, Verdict{Word: Unknown, Reason: ReasonLocalLeg}},
		{"a proxy on this host passed payload on", with(look(end, 104*time.Second, 104*time.Second), func(s *conn.Snapshot) { s.BytesReceived++ }), viaProxy, Verdict{Word: Alive}},
		{"a proxy on this host is silent", silent, viaProxy, Verdict{Word: DeadPath, Close: true}},
		{"half closed by us", with(silent, func(s *conn.Snapshot) { s.State = conn.FinWait2 }), asked, Verdict{Word: DeadPath, Close: true}},
		{"half closed by us, answered", with(look(end, 90*time.Second, 104*time.Second), func(s *conn.Snapshot) { s.State = conn.FinWait2 }), asked, Verdict{Word: AliveSlow}},
		{"a part of the answer, then silence", with(look(end, 101*time.Second, 101*time.Second), func(s *conn.Snapshot) { s.DataStamp, s.AckStamp, s.ProbesOut = 90000, 95000, 5 }), asked, Verdict{Word: DeadPath, Close: true}},
		{"refused, yet heard", look(end, 90*time.Second, 104*time.Second), Probe{Done: true, Blocked: true, Wanted: 5}, Verdict{Word: AliveSlow}},
	} {
		got := Decide(Input{Sent: sent, Before: before, After: test.after, Probe: test.probe})
		if got != test.want {
			t.Errorf("%s: %+v, want %+v", test.name, got, test.want)
		}
	}
}

// TestApplication: only silence on a connection that was made says anything, and
// only where the path answers.
func TestApplication(t *testing.T) {
	answered := look(end, 90*time.Second, 104*time.Second)
	in := Input{Sent: sent, Before: look(now, 90*time.Second, 95*time.Second), After: answered, Probe: asked}
	for _, test := range []struct {
		name   string
		change func(*Input)
		want   Verdict
	}{
		{"answered", func(in *Input) { in.App = AppAnswered; in.CloseHung = true }, Verdict{Word: AliveSlow}},
		{"could not connect", func(in *Input) { in.App = AppNoConnection; in.CloseHung = true }, Verdict{Word: AliveSlow}},
		{"silent", func(in *Input) { in.App = AppSilent; in.CloseHung = true }, Verdict{Word: AliveHung, Close: true}},
		{"silent, only recorded", func(in *Input) { in.App = AppSilent }, Verdict{Word: AliveHung}},
		{"silent on a dead path", func(in *Input) {
			in.App, in.After = AppSilent, look(end, 90*time.Second, 95*time.Second)
			in.After.Snapshot.ProbesOut = 1
		},
			Verdict{Word: DeadPath, Close: true}},
		{"silent, yet payload came", func(in *Input) {
			in.App, in.CloseHung = AppSilent, true
			in.After = with(look(end, 104*time.Second, 104*time.Second), func(s *conn.Snapshot) { s.BytesReceived++ })
		}, Verdict{Word: Alive}},
		{"silent, but no call was made here", func(in *Input) {
			in.App, in.CloseHung, in.SilentLimit = AppSilent, true, time.Second
			in.After.Snapshot.SendAge = time.Minute
		}, Verdict{Word: AliveSlow}},
		{"silent, but nothing was ever sent, and the connection is young", func(in *Input) {
			in.App, in.CloseHung, in.SilentLimit = AppSilent, true, time.Second
			in.After.Snapshot.NeverSent = true
		}, Verdict{Word: AliveSlow}},
		{"silent, and the report took a while to come", func(in *Input) {
			in.App, in.CloseHung = AppSilent, true
			in.After.Snapshot.SendAge = in.After.Snapshot.Taken - in.Sent + 400*time.Millisecond
		}, Verdict{Word: AliveHung, Close: true}},
		{"silent, but what was sent before the call was answered", func(in *Input) {
			in.App, in.CloseHung, in.SilentLimit = AppSilent, true, time.Second
			in.After.Snapshot.SendAge = in.After.Snapshot.Taken - in.Sent + 400*time.Millisecond
			in.After.Snapshot.DataAge = in.After.Snapshot.SendAge - 100*time.Millisecond
		}, Verdict{Word: AliveSlow}},
		{"silent, but the call was made elsewhere, later", func(in *Input) {
			in.App, in.CloseHung, in.SilentLimit = AppSilent, true, time.Second
			in.After.Snapshot.SendAge = in.After.Snapshot.Taken - in.Sent + 600*time.Millisecond
		}, Verdict{Word: AliveSlow}},
		{"silent, but the answer may wait behind the lock", func(in *Input) {
			in.App, in.CloseHung, in.SilentLimit = AppSilent, true, time.Second
			in.After.Snapshot.Locked, in.After.Snapshot.Backlog = true, true
		}, Verdict{Word: AliveSlow, Reason: ReasonLocked}},
		{"within the silent limit", func(in *Input) { in.SilentLimit = 5001 * time.Millisecond }, Verdict{Word: AliveSlow}},
		{"past the silent limit", func(in *Input) { in.SilentLimit = 5 * time.Second },
			Verdict{Word: AliveSlow, Reason: ReasonSilentLimit, Close: true}},
		{"hung, past the silent limit, and perhaps a proxy answered", func(in *Input) {
			in.App, in.CloseHung, in.SilentLimit, in.Probe.LegUnknown = AppSilent, true, time.Second, true
		}, Verdict{Word: Unknown, Reason: ReasonLegUnknown}},
		{"hung, past the silent limit", func(in *Input) { in.App, in.SilentLimit = AppSilent, time.Second },
			Verdict{Word: AliveHung, Reason: ReasonSilentLimit, Close: true}},
	} {
		in := in
		test.change(&in)
		if got := Decide(in); got != test.want {
			t.Errorf("%s: %+v, want %+v", test.name, got, test.want)
		}
	}
}

// TestJoined: two calls share one judgement, and each is weighed by its own age.
func TestJoined(t *testing.T) {
	in := Input{Before: look(now, 90*time.Second, 95*time.Second), Probe: asked}
	in.After = with(look(end, 104*time.Second, 104*time.Second), func(s *conn.Snapshot) { s.BytesReceived++ })
	in.Sent = sent
	if got := Decide(in); got.Word != Alive {
		t.Errorf("call older than the payload: %s, want %s", got.Word, Alive)
	}
	in.Sent = 104500 * time.Millisecond
	if got := Decide(in); got.Word != AliveSlow {
		t.Errorf("call younger than the payload: %s, want %s", got.Word, AliveSlow)
	}
}

// TestNeverALiveOne: whatever else is so, nothing is condemned that was heard
// from during the probe, nor before every attempt was made.
func TestNeverALiveOne(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	condemned := 0
	for range 200_000 {
		in := Input{
			Sent:   time.Duration(r.Int64N(int64(now))),
			Before: look(now, 90*time.Second, 95*time.Second),
			After:  Look{Found: r.IntN(4) > 0, Snapshot: randomly(r), Ended: End(r.IntN(5))},
			Probe:  Probe{Done: r.IntN(4) > 0, Sent: r.IntN(7), Wanted: 5, Blocked: r.IntN(8) == 0, NoRoute: r.IntN(8) == 0},
		}
		if !Decide(in).Close {
			continue
		}
		condemned++
		a, b := &in.After.Snapshot, &in.Before.Snapshot
		if !in.Probe.Done || in.Probe.Sent < in.Probe.Wanted || !in.After.Found || in.Probe.Blocked ||
			a.AckStamp != b.AckStamp || a.DataStamp != b.DataStamp || a.Backlog || a.Locked || a.ProbesOut == 0 && a.Retransmits == 0 || a.BytesAcked != b.BytesAcked || a.BytesReceived != b.BytesReceived ||
			a.MPTCP || a.MD5OrAO || a.Repair || !a.State.Judgeable() || a.State == conn.CloseWait {
			t.Fatalf("condemned: %+v", in)
		}
	}
	if condemned == 0 {
		t.Error("nothing was condemned at all")
	}
}

func randomly(r *rand.Rand) conn.Snapshot {
	l := look(end, time.Duration(r.Int64N(int64(end))), 95*time.Second)
	s := l.Snapshot
	s.State = conn.State(1 + r.IntN(12))
	s.MPTCP, s.MD5OrAO, s.Repair = r.IntN(8) == 0, r.IntN(8) == 0, r.IntN(8) == 0
	s.DstDevUp = r.IntN(8) > 0
	s.AckStamp = 94999 + uint32(r.IntN(2))
	s.DataStamp = 90000
	s.ProbesOut, s.Retransmits = uint8(r.IntN(2)), uint8(r.IntN(2))
	s.Backlog, s.Locked = r.IntN(8) == 0, r.IntN(8) == 0
	s.BytesReceived += uint64(r.IntN(2))
	s.BytesAcked += uint64(r.IntN(2))
	s.RcvNxt += uint32(r.IntN(2))
	return s
}

func TestEvidence(t *testing.T) {
	in := Input{Sent: sent, Before: look(now, 90*time.Second, 95*time.Second), Probe: asked}
	in.After = with(look(end, 90*time.Second, 104*time.Second), func(s *conn.Snapshot) { s.WriteSeq = 1 })
	e := in.Evidence()
	if e.State != conn.Established || e.PacketAge != time.Second || !e.ProbeAnswered || !e.InFlight ||
		e.ProbesSent != 5 || e.Window != 3*time.Second || e.CallAge != 2*time.Second || e.PayloadSinceCall {
		t.Errorf("evidence %+v", e)
	}
	in.After = Look{Ended: EndReset}
	if e := in.Evidence(); e.PacketAge != 7*time.Second || e.ProbeAnswered {
		t.Errorf("evidence of a socket that ended: %+v", e)
	}
	if e := (Input{}).Evidence(); e != (Evidence{}) {
		t.Errorf("evidence of nothing: %+v", e)
	}
}
