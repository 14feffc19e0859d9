// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/policy"
	"github.com/sockhealth/sockhealth/internal/prober"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

// suspects hands a suspect to the agent and returns the verdicts after a minute.
func suspects(t *testing.T, w *world, a *Agent, id conn.ID, heard time.Duration) []Entry {
	t.Helper()
	a.JudgeSilent(w.ns, loader.Suspect{ID: id, Policy: 1, Request: 2 * time.Second, Heard: heard}, nil)
	time.Sleep(time.Minute)
	synctest.Wait()
	return Entries(a, 0)
}

// TestSilentBusy: a suspect that finds too many judgements under way is to come again.
func TestSilentBusy(t *testing.T) {
	bubble(t, "busy", func(t *testing.T, w *world, a *Agent) {
		id := w.add(1, 10*time.Second, nil)
		a.owners[owner{w.ns.Inode(), 0}] = MaxOwned
		var again []loader.Suspect
		s := loader.Suspect{ID: id, Policy: 1, Request: 2 * time.Second, Heard: 10 * time.Second}
		a.JudgeSilent(w.ns, s, func(s loader.Suspect) { again = append(again, s) })
		synctest.Wait()
		if len(again) != 1 || again[0] != s {
			t.Errorf("again: %+v", again)
		}
		if told := Entries(a, 0); len(told) != 1 || told[0].Result.Reason != verdict.ReasonBusy {
			t.Errorf("told %+v", told)
		}
	})
}

// TestSilentSuspect: only a dead path costs a connection on which nobody gave a
// call up, whatever the policy says of those.
func TestSilentSuspect(t *testing.T) {
	bubble(t, "dead path", func(t *testing.T, w *world, a *Agent) {
		id := w.add(1, 10*time.Second, nil)
		w.add(2, 10*time.Second, nil) // its sibling
		got := suspects(t, w, a, id, 10*time.Second)
		if len(got) != 2 || got[0].Reporter != reporterSilence || got[0].Result.Verdict != verdict.DeadPath || got[0].Result.Action != ActionClosed ||
			got[0].Result.Evidence.CallAge != 2*time.Second || got[1].Reporter != reporterSweep || w.destroyed() != 2 {
			t.Errorf("%d destroyed, got %+v", w.destroyed(), got)
		}
		if n := a.Stats().Suspects["server"]; n != 1 {
			t.Errorf("%d suspects counted", n)
		}
	})
	bubble(t, "alive", func(t *testing.T, w *world, a *Agent) {
		w.pol.Peers[0].AppProbe = &policy.AppProbe{Kind: policy.AppHTTP, CloseHung: true}
		w.pol.Peers[0].CloseSilentAfter = time.Second
		w.app = func() prober.AppOutcome { return prober.AppSilent }
		id := w.add(1, 10*time.Second, answers)
		w.sockets[1].wrote = w.now() - 2*time.Second
		got := suspects(t, w, a, id, 10*time.Second)
		if len(got) != 1 || got[0].Result.Verdict != verdict.AliveSlow || got[0].Result.Action != ActionNone || w.asked != 0 || w.destroyed() != 0 {
			t.Errorf("asked %d times, %d destroyed, got %+v", w.asked, w.destroyed(), got)
		}
	})
	for name, meanwhile := range map[string]func(*world, *Agent, conn.ID){
		"heard meanwhile":    func(w *world, _ *Agent, _ conn.ID) { w.sockets[1].heard = w.now() },
		"answered meanwhile": func(w *world, _ *Agent, _ conn.ID) { w.payload(1) },
		"gone":               func(w *world, _ *Agent, _ conn.ID) { delete(w.sockets, 1) },
		"elsewhere":          func(_ *world, a *Agent, _ conn.ID) { a.Covers = func(uint32) bool { return false } },
		"stopped":            func(_ *world, a *Agent, _ conn.ID) { a.Close() },
	} {
		bubble(t, name, func(t *testing.T, w *world, a *Agent) {
			id := w.add(1, 10*time.Second, nil)
			meanwhile(w, a, id)
			if got := suspects(t, w, a, id, 10*time.Second); len(got) != 0 || w.destroyed() != 0 || w.provoked+w.sent != 0 {
				t.Errorf("%d destroyed, %d probes, got %+v", w.destroyed(), w.provoked+w.sent, got)
			}
		})
	}
}

// TestSilentJoins: who reports while a suspect is judged has the same evidence, and
// the watch does not judge it once more.
func TestSilentJoins(t *testing.T) {
	bubble(t, "reported", func(t *testing.T, w *world, a *Agent) {
		id := w.add(1, 10*time.Second, nil)
		reported := make(chan Result, 1)
		go func() { reported <- judgeOne(t, a, w.report(id, time.Second)) }()
		time.Sleep(time.Second)
		got := suspects(t, w, a, id, 10*time.Second)
		if r := <-reported; r.Verdict != verdict.DeadPath || len(got) != 1 || got[0].Reporter != reporterCall || w.destroyed() != 1 {
			t.Errorf("result %+v, %d destroyed, got %+v", r, w.destroyed(), got)
		}
	})
}
