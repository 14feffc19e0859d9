// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/policy"
	"github.com/sockhealth/sockhealth/internal/prober"
)

// TestOnceMore: a connection whose path answers, and that was condemned while nothing
// could be closed, is asked about until it is closed or answers.
func TestOnceMore(t *testing.T) {
	for name, condemn := range map[string]func(w *world){
		"hung": func(w *world) {
			w.pol.Peers[0].AppProbe = &policy.AppProbe{Kind: policy.AppHTTP, CloseHung: true}
			w.app = func() prober.AppOutcome { return prober.AppSilent }
		},
		"limit": func(w *world) { w.pol.Peers[0].CloseSilentAfter = 3 * time.Second },
	} {
		for _, answer := range []bool{false, true} {
			bubble(t, name, func(t *testing.T, w *world, a *Agent) {
				w.peers(7, 6)
				condemn(w)
				wantAll(t, w.reported(t, a, 1), ActionFrozen)
				w.sockets[7].wrote = w.now()
				judgeOne(t, a, w.report(w.sockets[7].snap.ID, 0))
				time.Sleep(time.Minute)
				if n := w.destroyed(); n != 0 {
					t.Fatalf("%d destroyed while frozen", n)
				}
				want := 1
				if answer {
					w.payload(7)
					want = 0
				}
				w.mu.Lock()
				for c := uint64(1); c <= 6; c++ {
					w.sockets[c].attempt = answers
				}
				w.mu.Unlock()
				time.Sleep(2 * time.Minute)
				if n := w.destroyed(); n != want || len(a.limits) != 0 {
					t.Errorf("%d destroyed, want %d; %d wait", n, want, len(a.limits))
				}
			})
		}
	}
}

// TestLimitBusy: a call whose silent limit passes while the agent is too busy to judge is
// asked about later.
func TestLimitBusy(t *testing.T) {
	bubble(t, "busy", func(t *testing.T, w *world, a *Agent) {
		w.pol.Peers[0].CloseSilentAfter = 3 * time.Second
		w.add(1, 10*time.Second, answers)
		judgeOne(t, a, w.report(w.sockets[1].snap.ID, 0))
		w.busy(a, true)
		time.Sleep(time.Minute)
		if n := w.destroyed(); n != 0 {
			t.Fatalf("%d destroyed by whom?", n)
		}
		w.busy(a, false)
		time.Sleep(2 * onceMore)
		a.mu.Lock()
		defer a.mu.Unlock()
		if n := w.destroyed(); n != 1 || len(a.limits) != 0 {
			t.Errorf("%d destroyed, %d wait", n, len(a.limits))
		}
	})
}
