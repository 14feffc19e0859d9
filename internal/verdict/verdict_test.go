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
		DataAge: taken - data, PacketAge: taken - packet, PacketStamp: uint32(packet / time.Millisecond),
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
		{"no such socket", Input{}, Verdict{Gone, ReasonNotFound}},
		{"peer not in the policy", Input{Before: quiet, Unmanaged: ReasonNoPolicy}, Verdict{Unmanaged, ReasonNoPolicy}},
		{"opened before the agent", Input{Before: quiet, Unmanaged: ReasonOlder}, Verdict{Unmanaged, ReasonOlder}},
		{"FIN came", Input{Before: with(quiet, func(s *conn.Snapshot) { s.State = conn.CloseWait })}, Verdict{Word: ClosedByPeer}},
		{"FIN came, everything closed", Input{Before: with(quiet, func(s *conn.Snapshot) { s.State = conn.LastAck })}, Verdict{Word: ClosedByPeer}},
		{"being connected", Input{Before: with(quiet, func(s *conn.Snapshot) { s.State = conn.SynSent })}, Verdict{Gone, ReasonEnded}},
		{"Multipath TCP", Input{Before: with(quiet, func(s *conn.Snapshot) { s.MPTCP = true })}, Verdict{Unknown, ReasonMPTCP}},
		{"Multipath TCP without record", Input{Unmanaged: ReasonOlder, Before: with(quiet, func(s *conn.Snapshot) { s.MPTCP = true })}, Verdict{Unknown, ReasonMPTCP}},
		{"signed segments", Input{Before: with(quiet, func(s *conn.Snapshot) { s.MD5OrAO = true })}, Verdict{Unknown, ReasonMD5OrAO}},
		{"under repair", Input{Before: with(quiet, func(s *conn.Snapshot) { s.Repair = true })}, Verdict{Unknown, ReasonRepair}},
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

func TestAfterProbe(t *testing.T) {
	before := look(now, 90*time.Second, 95*time.Second)
	silent := look(end, 90*time.Second, 95*time.Second)
	for _, test := range []struct {
		name  string
		after Look
		probe Probe
		want  Verdict
	}{
		{"silence", silent, asked, Verdict{Word: DeadPath}},
		{"silence with old bytes unread", with(silent, func(s *conn.Snapshot) { s.RcvNxt++ }), asked, Verdict{Word: DeadPath}},
		{"silence after its application closed it", with(silent, func(s *conn.Snapshot) { s.Orphan = true }), asked, Verdict{Word: DeadPath, Reason: ReasonOrphan}},
		{"probe answered", look(end, 90*time.Second, 104*time.Second), asked, Verdict{Word: AliveSlow}},
		{"answered within the tick of the first look", with(silent, func(s *conn.Snapshot) { s.PacketStamp++ }), asked, Verdict{Word: AliveSlow}},
		{"upload moves on", with(silent, func(s *conn.Snapshot) { s.BytesAcked++ }), asked, Verdict{Word: AliveSlow}},
		{"answer came meanwhile", with(look(end, 104*time.Second, 104*time.Second), func(s *conn.Snapshot) { s.BytesReceived++ }), asked, Verdict{Word: Alive}},
		{"answer came, unread", with(look(end, 104*time.Second, 104*time.Second), func(s *conn.Snapshot) { s.RcvNxt++ }), asked, Verdict{Word: LocalUnread}},
		{"FIN came", with(silent, func(s *conn.Snapshot) { s.State = conn.CloseWait }), asked, Verdict{Word: ClosedByPeer}},
		{"RST came", Look{Ended: EndReset}, asked, Verdict{Word: ClosedByPeer}},
		{"the bound struck", Look{Ended: EndBound}, asked, Verdict{Gone, ReasonBound}},
		{"destroyed by another", Look{Ended: EndDestroyed}, asked, Verdict{Gone, ReasonDestroyed}},
		{"closed by its application", Look{Ended: EndClosed}, asked, Verdict{Gone, ReasonEnded}},
		{"ended, nobody knows how", Look{}, asked, Verdict{Gone, ReasonEnded}},
		{"no carrier", with(silent, func(s *conn.Snapshot) { s.DstDevUp = false }), asked, Verdict{LocalFault, ReasonNoCarrier}},
		{"no route", silent, Probe{Done: true, NoRoute: true, Wanted: 5}, Verdict{LocalFault, ReasonNoRoute}},
		{"our segments refused", silent, Probe{Done: true, Blocked: true, Wanted: 5, Sent: 5}, Verdict{Unknown, ReasonProbeBlocked}},
		{"an attempt missing", silent, Probe{Done: true, Wanted: 5, Sent: 4}, Verdict{Unknown, ReasonProbeFailed}},
		{"refused, yet heard", look(end, 90*time.Second, 104*time.Second), Probe{Done: true, Blocked: true, Wanted: 5}, Verdict{Word: AliveSlow}},
	} {
		got := Decide(Input{Sent: sent, Before: before, After: test.after, Probe: test.probe})
		if got != test.want {
			t.Errorf("%s: %+v, want %+v", test.name, got, test.want)
		}
		if got.Condemns() != (got == Verdict{Word: DeadPath}) {
			t.Errorf("%s: %s condemns: %v", test.name, got.Word, got.Condemns())
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
			Before: look(now, time.Duration(r.Int64N(int64(now))), 95*time.Second),
			After:  Look{Found: r.IntN(4) > 0, Snapshot: randomly(r), Ended: End(r.IntN(5))},
			Probe:  Probe{Done: r.IntN(4) > 0, Sent: r.IntN(7), Wanted: 5, Blocked: r.IntN(8) == 0, NoRoute: r.IntN(8) == 0},
		}
		if !Decide(in).Condemns() {
			continue
		}
		condemned++
		a, b := &in.After.Snapshot, &in.Before.Snapshot
		if !in.Probe.Done || in.Probe.Sent < in.Probe.Wanted || !in.After.Found || in.Probe.Blocked ||
			a.PacketStamp != b.PacketStamp || a.BytesAcked != b.BytesAcked || a.BytesReceived != b.BytesReceived ||
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
	s.PacketStamp = uint32(r.IntN(2)) * 95000
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
