// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"hash/maphash"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/policy"
	"github.com/sockhealth/sockhealth/internal/prober"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

// TestCondemnedTwice: a socket that several calls condemn is closed once, and counted once.
func TestCondemnedTwice(t *testing.T) {
	for action, err := range map[Action]error{ActionClosed: nil, ActionFailed: errors.New("out of order")} {
		bubble(t, string(action), func(t *testing.T, w *world, a *Agent) {
			w.peers(1, 1)
			w.destroyErr = err
			wantAll(t, w.reported(t, a, 1, 1, 1), action)
			if n := a.Stats().Closes[CloseKey{"server", CauseDeadPath, action}]; n != 1 || err == nil && w.destroyed() != 1 {
				t.Errorf("%d counted, %d destroyed", n, w.destroyed())
			}
		})
	}
}

// TestOperatorClosesNothing: who asks from outside gets the verdict, and no more.
func TestOperatorClosesNothing(t *testing.T) {
	bubble(t, "dead", func(t *testing.T, w *world, a *Agent) {
		s, _ := w.Again(w.ns, w.add(1, 10*time.Second, nil))
		r, err := a.Probe(t.Context(), w.ns, s)
		if err != nil || r.Verdict != verdict.DeadPath || r.Action != ActionNone || w.destroyed() != 0 {
			t.Errorf("result %+v (%v), %d destroyed", r, err, w.destroyed())
		}
	})
}

// TestSiblingMadeNoCall: on a sibling whose path answers nobody is known to wait.
func TestSiblingMadeNoCall(t *testing.T) {
	bubble(t, "sibling", func(t *testing.T, w *world, a *Agent) {
		w.pol.Peers[0].CloseSilentAfter = time.Nanosecond
		id := w.add(1, 10*time.Second, nil)
		w.add(2, 10*time.Second, answers)
		w.sockets[2].wrote = w.now() + time.Hour
		if r := judgeOne(t, a, w.report(id, 2*time.Second)); r.Action != ActionClosed {
			t.Errorf("result %+v", r)
		}
		w.settled(t, a, time.Minute)
		if w.destroyed() != 1 {
			t.Errorf("%d destroyed", w.destroyed())
		}
	})
}

// TestCallOlderThanConnection: whoever says so is not believed.
func TestCallOlderThanConnection(t *testing.T) {
	bubble(t, "an hour", func(t *testing.T, w *world, a *Agent) {
		w.pol.Peers[0].CloseSilentAfter = time.Minute
		id := w.add(1, 10*time.Second, answers)
		w.sockets[1].snap.Record.Opened = w.now() - 10*time.Second
		if r := judgeOne(t, a, w.report(id, time.Hour)); r.Verdict != verdict.AliveSlow || r.Action != ActionNone || w.destroyed() != 0 {
			t.Errorf("result %+v, %d destroyed", r, w.destroyed())
		}
	})
}

// TestHungAsksNobody: where the path answers it is not this node, and no survey is made.
func TestHungAsksNobody(t *testing.T) {
	bubble(t, "hung", func(t *testing.T, w *world, a *Agent) {
		w.peers(6, 6)
		w.sockets[1].attempt = answers
		w.pol.Peers[0].AppProbe = &policy.AppProbe{Kind: policy.AppHTTP, CloseHung: true}
		w.app = func() prober.AppOutcome { return prober.AppSilent }
		if r := w.reported(t, a, 1)[0]; r.Verdict != verdict.AliveHung || r.Action != ActionClosed || w.scans != 0 {
			t.Errorf("result %+v, %d surveys", r, w.scans)
		}
	})
}

// TestDeferredJitter: the turns of many nodes do not keep step.
func TestDeferredJitter(t *testing.T) {
	labtest.NoKernel(t)
	var took [5]time.Duration
	for i := range took {
		bubble(t, "node", func(t *testing.T, w *world, a *Agent) {
			w.strike(t, a, 8)
			for w.destroyed() < 7 && w.now() < 2*time.Hour {
				time.Sleep(time.Millisecond)
			}
			took[i] = time.Since(w.start)
			w.settled(t, a, time.Minute)
		})
	}
	if slices.Max(took[:])-slices.Min(took[:]) < 5*time.Millisecond {
		t.Errorf("they took %v", took)
	}
}

// TestSurveyKeepsTo: a survey asks on connections that can be judged, in the namespaces that
// the agent acts in, for no longer than it may, and takes a place for its walk.
func TestSurveyKeepsTo(t *testing.T) {
	bubble(t, "connections that can be judged", func(t *testing.T, w *world, a *Agent) {
		w.peers(2, 0)
		v := newVoices(maphash.MakeSeed(), a.Kernel.InForce(), 0)
		for c := uint64(1); c <= 2; c++ {
			s := w.look(w.sockets[c])
			s.Remote = w.sockets[1].snap.Remote
			s.PacketAge -= time.Duration(c) * time.Second
			s.MPTCP = c == 2 // the one that was heard last
			v.add(w.ns, &s)
		}
		if list := v.others(); len(list) != 1 || list[0].ask.Cookie != 1 || list[0].heard != w.now()-8*time.Second {
			t.Errorf("%+v", list)
		}
	})
	bubble(t, "namespaces", func(t *testing.T, w *world, a *Agent) {
		w.peers(6, 6)
		a.Covers = func(uint32) bool { return false }
		if found := a.survey(w.ns, w.now(), 0, FreezeSilent); found.peers != 0 || w.scans != 0 {
			t.Errorf("%+v, %d walks", found, w.scans)
		}
	})
	bubble(t, "its time", func(t *testing.T, w *world, a *Agent) {
		w.peers(6, 6)
		w.pol.Peers[0].Probe.Window = time.Minute
		began := w.now()
		if a.survey(w.ns, began, 0, FreezeSilent); w.now()-began != askLimit {
			t.Errorf("it took %v", w.now()-began)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
	})
	bubble(t, "places", func(t *testing.T, w *world, a *Agent) {
		w.peers(6, 0)
		w.fill(a)
		if found := a.survey(w.ns, w.now(), 0, FreezeSilent); !found.partial || w.scans != 0 {
			t.Errorf("%+v, %d walks", found, w.scans)
		}
	})
}

// TestCloseHeldUp: a close that waits for a lock that came after the last look is no
// success, and the record says that it may still come.
func TestCloseHeldUp(t *testing.T) {
	bubble(t, "held up", func(t *testing.T, w *world, a *Agent) {
		w.destroying = make(chan struct{})
		defer close(w.destroying)
		var log strings.Builder
		a.Log = slog.New(slog.NewTextHandler(&log, nil))
		r := judgeOne(t, a, w.report(w.add(1, 10*time.Second, nil), 0))
		if r.Verdict != verdict.DeadPath || r.Action != ActionFailed || !strings.Contains(log.String(), errYetToCome.Error()) {
			t.Errorf("%+v, log: %s", r, log.String())
		}
	})
}
