// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/policy"
	"github.com/sockhealth/sockhealth/internal/prober"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

func answers(int) bool { return true }

// TestApplicationProbe: it is asked where the path answers and the call does
// not, and only its silence costs anything.
func TestApplicationProbe(t *testing.T) {
	for _, test := range []struct {
		name    string
		outcome prober.AppOutcome
		hung    bool // on_hung: close
		word    verdict.Word
		action  Action
	}{
		{"answered", prober.AppAnswered, true, verdict.AliveSlow, ActionNone},
		{"no connection", prober.AppNoConnection, true, verdict.AliveSlow, ActionNone},
		{"silent", prober.AppSilent, true, verdict.AliveHung, ActionClosed},
		{"silent, recorded only", prober.AppSilent, false, verdict.AliveHung, ActionNone},
	} {
		bubble(t, test.name, func(t *testing.T, w *world, a *Agent) {
			w.pol.Peers[0].AppProbe = &policy.AppProbe{Kind: policy.AppHTTP, CloseHung: test.hung}
			w.app = func() prober.AppOutcome { return test.outcome }
			id := w.add(1, 10*time.Second, answers)
			r := judgeOne(t, a, w.report(id, 2*time.Second))
			if r.Verdict != test.word || r.Action != test.action || w.asked != 1 {
				t.Errorf("result %+v, asked %d times", r, w.asked)
			}
			if (test.action == ActionClosed) != (w.destroyed() == 1) {
				t.Errorf("%d destroyed", w.destroyed())
			}
		})
	}
	bubble(t, "dead path", func(t *testing.T, w *world, a *Agent) {
		w.pol.Peers[0].AppProbe = &policy.AppProbe{Kind: policy.AppHTTP}
		if r := judgeOne(t, a, w.report(w.add(1, 10*time.Second, nil), 0)); r.Verdict != verdict.DeadPath || w.asked != 0 {
			t.Errorf("result %+v, asked %d times; nothing is dialled about a dead path", r, w.asked)
		}
	})
	bubble(t, "inbound", func(t *testing.T, w *world, a *Agent) {
		w.pol.Peers[0].AppProbe = &policy.AppProbe{Kind: policy.AppHTTP}
		id := w.add(1, 10*time.Second, answers)
		w.sockets[1].snap.Record.Direction = conn.Inbound
		if r := judgeOne(t, a, w.report(id, 0)); r.Verdict != verdict.AliveSlow || w.asked != 0 {
			t.Errorf("result %+v, asked %d times; a client is not dialled", r, w.asked)
		}
	})
	bubble(t, "answer to the call meanwhile", func(t *testing.T, w *world, a *Agent) {
		w.pol.Peers[0].AppProbe = &policy.AppProbe{Kind: policy.AppHTTP, CloseHung: true}
		id := w.add(1, 10*time.Second, answers)
		w.app = func() prober.AppOutcome {
			time.Sleep(10 * time.Second)
			w.payload(1)
			return prober.AppSilent
		}
		if r := judgeOne(t, a, w.report(id, 2*time.Second)); r.Verdict != verdict.Alive || w.destroyed() != 0 {
			t.Errorf("result %+v, %d destroyed", r, w.destroyed())
		}
	})
}

// payload makes a socket receive some.
func (w *world) payload(cookie uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.sockets[cookie]
	s.heard, s.data = w.now(), w.now()
	s.snap.BytesReceived += 100
}

func TestObserve(t *testing.T) {
	bubble(t, "lives on", func(t *testing.T, w *world, a *Agent) {
		w.pol.Peers[0].Observe = true
		id := w.add(1, 10*time.Second, nil)
		for range 3 {
			r := judgeOne(t, a, w.report(id, 2*time.Second))
			if r.Verdict != verdict.DeadPath || r.Action != ActionObserved || w.destroyed() != 0 {
				t.Errorf("result %+v, %d destroyed", r, w.destroyed())
			}
		}
		time.Sleep(time.Minute)
		if n := a.Stats().WouldHaveClosed["server"]; n != 0 {
			t.Errorf("%d counted before any payload", n)
		}
		w.payload(1)
		time.Sleep(2 * time.Minute)
		stats := a.Stats()
		if stats.WouldHaveClosed["server"] != 1 || stats.Closes[CloseKey{"server", CauseDeadPath, ActionObserved}] != 3 {
			t.Errorf("stats %+v, want 1 that would have been closed alive, 3 observed", stats)
		}
	})
	bubble(t, "was dead indeed", func(t *testing.T, w *world, a *Agent) {
		w.pol.Peers[0].Observe = true
		judgeOne(t, a, w.report(w.add(1, 10*time.Second, nil), 0))
		w.mu.Lock()
		delete(w.sockets, 1)
		w.mu.Unlock()
		time.Sleep(2 * time.Minute)
		if n := a.Stats().WouldHaveClosed["server"]; n != 0 || len(a.watched) != 0 {
			t.Errorf("%d counted, %d still watched", n, len(a.watched))
		}
	})
}

// TestPolicyChangesMeanwhile: what counts is the policy in force at the close.
func TestPolicyChangesMeanwhile(t *testing.T) {
	for text, want := range map[string]Result{
		"version: 1\npeers: [{name: server, cidrs: [10.91.2.0/24], action: observe}]\n": {Verdict: verdict.DeadPath, Action: ActionObserved},
	} {
		bubble(t, string(want.Action), func(t *testing.T, w *world, a *Agent) {
			next, err := policy.Parse("next.yaml", []byte(text))
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				time.Sleep(time.Second)
				w.mu.Lock()
				w.pol = next
				w.mu.Unlock()
			}()
			r := judgeOne(t, a, w.report(w.add(1, 10*time.Second, nil), 2*time.Second))
			if r.Verdict != want.Verdict || r.Action != want.Action || w.destroyed() != 0 {
				t.Errorf("result %+v, %d destroyed; want %s, %s", r, w.destroyed(), want.Verdict, want.Action)
			}
		})
	}
}

// TestSilentLimit: one report suffices, and the answer in time saves the socket.
func TestSilentLimit(t *testing.T) {
	bubble(t, "passes", func(t *testing.T, w *world, a *Agent) {
		w.pol.Peers[0].CloseSilentAfter = time.Minute
		id := w.add(1, 10*time.Second, answers)
		for range 3 {
			if r := judgeOne(t, a, w.report(id, 2*time.Second)); r.Verdict != verdict.AliveSlow || r.Action != ActionNone {
				t.Errorf("result %+v", r)
			}
		}
		began := w.now()
		for w.destroyed() == 0 && w.now()-began < 2*time.Minute {
			time.Sleep(100 * time.Millisecond)
		}
		if took := w.now() - began; w.destroyed() != 1 || took < 57*time.Second || took > 59*time.Second {
			t.Errorf("%d destroyed after %v, want 1 a minute after the call", w.destroyed(), took)
		}
		if n := a.Stats().Closes[CloseKey{"server", CauseSilentLimit, ActionClosed}]; n != 1 {
			t.Errorf("%d closes counted", n)
		}
	})
	bubble(t, "answer in time", func(t *testing.T, w *world, a *Agent) {
		w.pol.Peers[0].CloseSilentAfter = time.Minute
		judgeOne(t, a, w.report(w.add(1, 10*time.Second, answers), 2*time.Second))
		time.Sleep(30 * time.Second)
		w.payload(1)
		time.Sleep(2 * time.Minute)
		if w.destroyed() != 0 || len(a.limits) != 0 {
			t.Errorf("%d destroyed, %d still waiting", w.destroyed(), len(a.limits))
		}
	})
}

// TestPeerAlone: every socket of the caller to it, each judged alone.
func TestPeerAlone(t *testing.T) {
	bubble(t, "peer alone", func(t *testing.T, w *world, a *Agent) {
		id := w.add(1, 10*time.Second, nil)
		w.add(2, 10*time.Second, answers)
		w.add(3, 10*time.Second, nil)
		w.sockets[3].snap.UID = 7
		r := Report{Caller: Caller{NS: w.ns}, Peer: id.Remote, Sent: w.now()}
		results, err := a.Judge(context.Background(), r)
		if err != nil || len(results) != 2 {
			t.Fatalf("results %+v, error %v; want 2", results, err)
		}
		for _, r := range results {
			if want := map[uint64]verdict.Word{1: verdict.DeadPath, 2: verdict.AliveSlow}[r.ID.Cookie]; r.Verdict != want {
				t.Errorf("cookie %d: %s, want %s", r.ID.Cookie, r.Verdict, want)
			}
		}
		r.Caller.Owner = true
		time.Sleep(time.Minute)
		if results, err = a.Judge(context.Background(), r); err != nil || len(results) != 1 && len(results) != 2 {
			t.Errorf("the owner: %+v, %v", results, err)
		}
		r.Peer = id.Local
		if results, err = a.Judge(context.Background(), r); err != nil || results == nil || len(results) != 0 {
			t.Errorf("nobody's peer: %+v, %v; want an empty list", results, err)
		}
	})
}
