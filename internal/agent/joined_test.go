// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
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
		bubble(t, "reported meanwhile, "+name, func(t *testing.T, w *world, a *Agent) {
			id := w.add(1, 10*time.Second, nil)
			w.add(2, 10*time.Second, nil) // a sibling, which who never acts does not ask about
			ask(t, w, a, id)
			time.Sleep(100 * time.Millisecond)
			if r := judgeOne(t, a, w.report(id, 2*time.Second)); r.Action != ActionClosed {
				t.Errorf("result %+v", r)
			}
			w.settled(t, a, time.Minute)
			if w.destroyed() != 2 {
				t.Errorf("%d destroyed", w.destroyed())
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

// TestJudgementsBound: no more than MaxJudgements are under way.
func TestJudgementsBound(t *testing.T) {
	bubble(t, "full", func(t *testing.T, w *world, a *Agent) {
		id := w.add(1, 10*time.Second, nil)
		for i := range MaxJudgements {
			a.judgements[key{0, uint64(i)}] = nil
		}
		if r, err := a.Judge(context.Background(), w.report(id, 0)); !errors.Is(err, ErrBusy) {
			t.Errorf("result %+v, error %v", r, err)
		}
		clear(a.judgements)
	})
}

// TestSweepOnce: however many of a peer's connections are found silent, their siblings are
// looked for once.
func TestSweepOnce(t *testing.T) {
	bubble(t, "two reported", func(t *testing.T, w *world, a *Agent) {
		for c := uint64(1); c <= 3; c++ {
			w.add(c, 10*time.Second, nil)
		}
		wantAll(t, w.reported(t, a, 1, 2), ActionClosed)
		w.settled(t, a, time.Minute)
		if w.destroyed() != 3 || w.scans != 3 { // and once for each survey
			t.Errorf("%d destroyed, %d walks", w.destroyed(), w.scans)
		}
	})
}
