// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sockhealth/sockhealth/internal/policy"
	"github.com/sockhealth/sockhealth/internal/prober"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

// TestDeferredBusy: whose turn comes while the agent is too busy to judge, or cannot ask the
// kernel, waits for another; what the turn took out of the budget is left to others.
func TestDeferredBusy(t *testing.T) {
	cannot := func(w *world, _ *Agent, is bool) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.againErr = nil
		if is {
			w.againErr = errors.New("no descriptor is left")
		}
	}
	for name, tc := range map[string]struct {
		hinder  func(w *world, a *Agent, is bool)
		lasts   time.Duration
		records int32 // of turns that came to nothing
		left    int   // sockets
	}{
		"busy":       {(*world).busy, 10 * time.Minute, 0, 0},
		"cannot ask": {cannot, onceMore + 10*time.Second, 2, 0},
		"never can":  {cannot, time.Hour, turnFailures, 1},
	} {
		bubble(t, name, func(t *testing.T, w *world, a *Agent) {
			w.pol.Limits = policy.Limits{PerPeer: 1, PerNode: 1}
			w.pol.Peers[0].AppProbe = &policy.AppProbe{Kind: policy.AppHTTP, CloseHung: true}
			w.app = func() prober.AppOutcome { return prober.AppSilent }
			w.add(1, 10*time.Second, answers)
			w.add(2, 10*time.Second, answers)
			var records atomic.Int32
			defer follow(a, func(e *Entry) {
				if e.Result.Verdict == verdict.Unknown {
					records.Add(1)
				}
			})()
			for i, want := range []Action{ActionClosed, ActionDeferred} {
				if r := judgeOne(t, a, w.report(w.sockets[uint64(i+1)].snap.ID, 0)); r.Verdict != verdict.AliveHung || r.Action != want {
					t.Fatalf("%+v, want %s", r, want)
				}
			}
			tc.hinder(w, a, true)
			began := w.now()
			if tc.records > 0 {
				for records.Load() == 0 && w.now()-began < time.Minute {
					time.Sleep(time.Millisecond)
				}
				synctest.Wait()
				a.queue.mu.Lock()
				if due := a.queue.budget.node.due(w.now(), 1); due > 0 {
					t.Errorf("a turn that came to nothing leaves no close for %s", due)
				}
				a.queue.mu.Unlock()
			}
			time.Sleep(began + tc.lasts - w.now())
			tc.hinder(w, a, false)
			w.settled(t, a, 2*onceMore)
			if n := w.destroyed(); n != 2-tc.left || records.Load() != tc.records {
				t.Errorf("%d destroyed, %d records of turns that came to nothing; want %d, %d", n, records.Load(), 2-tc.left, tc.records)
			}
		})
	}
}

// busy has as many sockets under judgement as their owner may have, or none.
func (w *world) busy(a *Agent, is bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.owners, owner{w.ns.Inode(), 0})
	if is {
		a.owners[owner{w.ns.Inode(), 0}] = MaxOwned
	}
}
