// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

// TestJoinsWhoNeverActs: a socket about which an operator or a survey asks is closed
// all the same by whoever finds it dead meanwhile.
func TestJoinsWhoNeverActs(t *testing.T) {
	asks := map[string]func(t *testing.T, w *world, a *Agent, id conn.ID){
		"operator": func(_ *testing.T, w *world, a *Agent, id conn.ID) {
			s, _ := w.Again(w.ns, id)
			go a.Probe(context.Background(), w.ns, s)
		},
		"survey": func(t *testing.T, w *world, a *Agent, id conn.ID) {
			s, _ := w.Again(w.ns, id)
			v := &voice{ns: w.ns, ask: s}
			j := a.question(v)
			if j == nil {
				t.Fatal("no question")
			}
			go a.answer(v, j)
		},
	}
	for name, ask := range asks {
		bubble(t, "sibling, "+name, func(t *testing.T, w *world, a *Agent) {
			one, two := w.add(1, 10*time.Second, nil), w.add(2, 10*time.Second, nil)
			reported := make(chan Result, 1)
			go func() { reported <- judgeOne(t, a, w.report(one, 2*time.Second)) }()
			time.Sleep(time.Second) // before the sweep
			ask(t, w, a, two)
			if r := <-reported; r.Action != ActionClosed {
				t.Errorf("result %+v", r)
			}
			w.settled(t, a, time.Minute)
			if n := a.Stats().Closes[CloseKey{"server", CauseDeadPath, ActionClosed}]; w.destroyed() != 2 || n != 2 {
				t.Errorf("%d destroyed, %d counted", w.destroyed(), n)
			}
		})
		bubble(t, "suspect, "+name, func(t *testing.T, w *world, a *Agent) {
			id := w.add(1, 10*time.Second, nil)
			ask(t, w, a, id)
			time.Sleep(time.Second)
			var of []Entry
			for _, e := range suspects(t, w, a, id, 10*time.Second) {
				if e.Reporter == reporterSilence {
					of = append(of, e)
				}
			}
			if len(of) != 1 || of[0].Result.Verdict != verdict.DeadPath || of[0].Result.Action != ActionClosed || w.destroyed() != 1 {
				t.Errorf("%d destroyed, got %+v", w.destroyed(), of)
			}
		})
	}
}
