// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/policy"
	"github.com/sockhealth/sockhealth/internal/prober"
	"github.com/sockhealth/sockhealth/internal/sockets"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

// bubble runs fn on a fake clock, with an agent over a made-up world. Every
// goroutine has to end with the agent.
func bubble(t *testing.T, name string, fn func(t *testing.T, w *world, a *Agent)) {
	t.Helper()
	labtest.NoKernel(t)
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			a := w.agent()
			defer a.Close()
			fn(t, w, a)
			DecidedAgain(t, a)
		})
	})
}

func judgeOne(t *testing.T, a *Agent, r Report) Result {
	t.Helper()
	results, err := a.Judge(context.Background(), r)
	if err != nil || len(results) != 1 {
		t.Fatalf("results %v, error %v; want one result", results, err)
	}
	return results[0]
}

func TestWindow(t *testing.T) {
	bubble(t, "silence", func(t *testing.T, w *world, a *Agent) {
		id := w.add(1, 10*time.Second, nil)
		r := judgeOne(t, a, w.report(id, 2*time.Second))
		if r.Verdict != verdict.DeadPath || r.Action != ActionClosed || w.destroyed() != 1 {
			t.Errorf("result %+v, %d destroyed", r, w.destroyed())
		}
		if r.Duration != 3*time.Second || w.provoked != 5 || w.sent != 1 || r.Evidence.ProbesSent != 6 {
			t.Errorf("%v, %d keepalives, %d segments, %d counted; want 3s, 5, 1, 6",
				r.Duration, w.provoked, w.sent, r.Evidence.ProbesSent)
		}
		if r.Evidence.CallAge != 2*time.Second || r.Evidence.Window != 3*time.Second {
			t.Errorf("evidence %+v", r.Evidence)
		}
	})
	bubble(t, "every look is late", func(t *testing.T, w *world, a *Agent) {
		id := w.add(1, 10*time.Second, nil)
		w.again = func(*fakeSocket) { time.Sleep(3 * time.Millisecond) }
		r := judgeOne(t, a, w.report(id, 2*time.Second))
		if r.Verdict != verdict.DeadPath || r.Duration > 3020*time.Millisecond || w.provoked != 5 {
			t.Errorf("result %+v, %d keepalives; want the window, and no more than the last looks were late", r, w.provoked)
		}
	})
	bubble(t, "long round trip", func(t *testing.T, w *world, a *Agent) {
		id := w.add(1, 10*time.Second, nil)
		w.sockets[1].snap.SRTT = 2 * time.Second
		if r := judgeOne(t, a, w.report(id, 0)); r.Duration != 8500*time.Millisecond {
			t.Errorf("window %v, want 4 round trips and 500 ms", r.Duration)
		}
	})
	bubble(t, "in flight", func(t *testing.T, w *world, a *Agent) {
		id := w.add(1, 10*time.Second, nil)
		w.sockets[1].snap.WriteSeq = 7
		r := judgeOne(t, a, w.report(id, 0))
		if r.Verdict != verdict.DeadPath || w.provoked != 0 || w.sent != 5 || !r.Evidence.InFlight {
			t.Errorf("result %+v, %d keepalives, %d segments; want 0 and 5", r, w.provoked, w.sent)
		}
	})
	bubble(t, "heard a moment ago", func(t *testing.T, w *world, a *Agent) {
		id := w.add(1, 300*time.Millisecond, nil)
		if r := judgeOne(t, a, w.report(id, 200*time.Millisecond)); r.Verdict != verdict.DeadPath || w.sent < 2 {
			t.Errorf("result %+v, %d segments; want some, since no keepalive is due yet", r, w.sent)
		}
	})
}

// TestLostProbes: one answer suffices, whichever attempt gets it.
func TestLostProbes(t *testing.T) {
	for answered := 1; answered <= 5; answered++ {
		bubble(t, fmt.Sprint(answered), func(t *testing.T, w *world, a *Agent) {
			id := w.add(1, 10*time.Second, func(n int) bool { return n == answered })
			r := judgeOne(t, a, w.report(id, 2*time.Second))
			synctest.Wait()
			if r.Verdict != verdict.AliveSlow || w.destroyed() != 0 || !r.Evidence.ProbeAnswered || r.Evidence.ProbesSent < answered {
				t.Errorf("result %+v, %d destroyed", r, w.destroyed())
			}
			if !w.calmed[1] {
				t.Error("the keepalive time was not put back")
			}
		})
	}
}

// TestAnswerInTheSameTick: the ACK of the request came just now, and the peer
// answers the first attempt only, at once.
func TestAnswerInTheSameTick(t *testing.T) {
	bubble(t, "same tick", func(t *testing.T, w *world, a *Agent) {
		id := w.add(1, 0, func(n int) bool { return n == 1 })
		if r := judgeOne(t, a, w.report(id, time.Millisecond)); r.Verdict != verdict.AliveSlow || w.destroyed() != 0 {
			t.Errorf("result %+v, %d destroyed", r, w.destroyed())
		}
	})
}

// TestJoin: many reports about one socket are one judgement and one close.
func TestJoin(t *testing.T) {
	bubble(t, "join", func(t *testing.T, w *world, a *Agent) {
		id := w.add(1, 10*time.Second, nil)
		const reports = 10
		results := make(chan Result, reports)
		for i := range reports {
			go func() {
				time.Sleep(time.Duration(i) * 100 * time.Millisecond)
				results <- judgeOne(t, a, w.report(id, time.Duration(i)*time.Second))
			}()
		}
		for range reports {
			if r := <-results; r.Verdict != verdict.DeadPath || r.Action != ActionClosed {
				t.Errorf("result %+v", r)
			}
		}
		if w.provoked != 5 || w.destroyed() != 1 {
			t.Errorf("%d keepalives, %d destroyed; want 5 and 1", w.provoked, w.destroyed())
		}
		stats := a.Stats()
		if stats.Verdicts[VerdictKey{"server", verdict.DeadPath}] != reports || stats.Judgements != 0 {
			t.Errorf("stats %+v", stats)
		}
	})
}

// TestManySockets: the walks are shared, and siblings are swept.
func TestManySockets(t *testing.T) {
	bubble(t, "pool", func(t *testing.T, w *world, a *Agent) {
		w.walkTime = 20 * time.Millisecond
		w.pol.Limits = policy.Limits{PerPeer: 10_000, PerNode: 10_000}
		const pool = 1000
		for c := range uint64(pool) {
			w.add(c+1, 10*time.Second, nil)
		}
		alive := w.add(pool+1, 10*time.Second, func(n int) bool { return n == 5 })
		began := w.now()
		judgeOne(t, a, w.report(w.sockets[1].snap.ID, 2*time.Second))
		for w.destroyed() < pool && w.now()-began < time.Minute {
			time.Sleep(10 * time.Millisecond)
		}
		// Two attempts of 650 ms, then a window of 3 s; the walks take time, too.
		if took := w.now() - began; w.destroyed() != pool || took > 5*time.Second {
			t.Errorf("%d of %d closed after %v", w.destroyed(), pool, took)
		}
		if w.walks > 50 {
			t.Errorf("%d walks for %d sockets", w.walks, pool)
		}
		time.Sleep(10 * time.Second)
		if w.sockets[alive.Cookie] == nil {
			t.Error("the one that lives was closed")
		}
	})
}

func TestLastLook(t *testing.T) {
	bubble(t, "healed", func(t *testing.T, w *world, a *Agent) {
		id := w.add(1, 10*time.Second, nil)
		ends := w.now() + 3*time.Second
		looks := 0
		w.again = func(s *fakeSocket) {
			if w.now() == ends { // the last look of the probe, the one after calming, the one before the close
				if looks++; looks == 3 {
					s.heard = ends
				}
			}
		}
		r := judgeOne(t, a, w.report(id, 2*time.Second))
		if r.Verdict != verdict.AliveSlow || r.Action != ActionNone || w.destroyed() != 0 || looks != 3 {
			t.Errorf("result %+v, %d destroyed, %d looks at the end", r, w.destroyed(), looks)
		}
	})
	bubble(t, "the kernel refuses", func(t *testing.T, w *world, a *Agent) {
		w.destroyErr = errors.New("not today")
		r := judgeOne(t, a, w.report(w.add(1, 10*time.Second, nil), 0))
		if r.Verdict != verdict.DeadPath || r.Action != ActionFailed {
			t.Errorf("result %+v", r)
		}
	})
	bubble(t, "acknowledged but not done", func(t *testing.T, w *world, a *Agent) {
		w.deaf = true
		r := judgeOne(t, a, w.report(w.add(1, 10*time.Second, nil), 0))
		if r.Verdict != verdict.DeadPath || r.Action != ActionFailed {
			t.Errorf("result %+v", r)
		}
	})
	bubble(t, "gone when closed", func(t *testing.T, w *world, a *Agent) {
		w.destroyErr = sockets.ErrGone
		r := judgeOne(t, a, w.report(w.add(1, 10*time.Second, nil), 0))
		if r.Verdict != verdict.Gone || r.Action != ActionNone {
			t.Errorf("result %+v", r)
		}
	})
}

// TestEnds: how a socket ended while it was being probed comes from the event.
func TestEnds(t *testing.T) {
	for _, test := range []struct {
		event  *loader.Event
		word   verdict.Word
		reason string
	}{
		{&loader.Event{Cause: loader.CauseReset}, verdict.ClosedByPeer, ""},
		{&loader.Event{Cause: loader.CauseIdle}, verdict.Gone, verdict.ReasonBound},
		{&loader.Event{Cause: loader.CauseDestroyed}, verdict.Gone, verdict.ReasonDestroyed},
		{nil, verdict.Gone, verdict.ReasonEnded},
	} {
		bubble(t, string(test.word)+test.reason, func(t *testing.T, w *world, a *Agent) {
			id := w.add(1, 10*time.Second, nil)
			go func() {
				time.Sleep(time.Second)
				w.mu.Lock()
				delete(w.sockets, 1)
				w.mu.Unlock()
				if test.event != nil {
					time.Sleep(50 * time.Millisecond)
					test.event.ID = id
					a.ended(test.event)
				}
			}()
			r := judgeOne(t, a, w.report(id, 2*time.Second))
			if r.Verdict != test.word || r.Reason != test.reason || w.destroyed() != 0 {
				t.Errorf("result %+v, want %s (%s)", r, test.word, test.reason)
			}
		})
	}
}

func TestRefusedProbes(t *testing.T) {
	for err, want := range map[error]verdict.Verdict{
		prober.ErrBlocked: {Word: verdict.Unknown, Reason: verdict.ReasonProbeBlocked},
		prober.ErrNoRoute: {Word: verdict.LocalFault, Reason: verdict.ReasonNoRoute},
		fmt.Errorf("%w: %w", prober.ErrLinkDown, prober.ErrNoRoute): {Word: verdict.LocalFault, Reason: verdict.ReasonNoCarrier},
		errors.New("odd"): {Word: verdict.Unknown, Reason: verdict.ReasonProbeFailed},
	} {
		bubble(t, want.Reason, func(t *testing.T, w *world, a *Agent) {
			w.sendErr = err
			id := w.add(1, 10*time.Second, nil)
			w.sockets[1].snap.WriteSeq = 7 // in flight
			r := judgeOne(t, a, w.report(id, 0))
			if r.Verdict != want.Word || r.Reason != want.Reason || w.destroyed() != 0 {
				t.Errorf("result %+v, want %+v", r, want)
			}
		})
	}
}

func TestCloseEndsEverything(t *testing.T) {
	bubble(t, "close", func(t *testing.T, w *world, a *Agent) {
		id := w.add(1, 10*time.Second, nil)
		got := make(chan error)
		go func() {
			_, err := a.Judge(context.Background(), w.report(id, 0))
			got <- err
		}()
		time.Sleep(time.Second)
		a.Close()
		if err := <-got; !errors.Is(err, ErrStopped) {
			t.Errorf("judgement ended with %v, want ErrStopped", err)
		}
		if _, err := a.Judge(context.Background(), w.report(id, 0)); !errors.Is(err, ErrStopped) {
			t.Errorf("a report afterwards: %v, want ErrStopped", err)
		}
		if w.destroyed() != 0 || !w.calmed[1] {
			t.Errorf("%d destroyed, calmed %v", w.destroyed(), w.calmed[1])
		}
	})
}

// TestHeldUp: a walk that a locked socket holds up costs the evidence of the
// kernel's own keepalive, so that nothing is closed, and no time beyond its limit.
func TestHeldUp(t *testing.T) {
	bubble(t, "held up", func(t *testing.T, w *world, a *Agent) {
		w.walkTime = time.Hour
		for _, cookie := range []uint64{1, 2} {
			r := judgeOne(t, a, w.report(w.add(cookie, 10*time.Second, nil), 0))
			if r.Verdict != verdict.Unknown || r.Reason != verdict.ReasonUnconfirmed || w.destroyed() != 0 {
				t.Errorf("result %+v, %d destroyed", r, w.destroyed())
			}
			if r.Duration > 8*time.Second {
				t.Errorf("took %v", r.Duration)
			}
		}
		began := w.now()
		a.Close()
		if took := w.now() - began; took > 3*time.Second {
			t.Errorf("the end took %v", took)
		}
		time.Sleep(3 * time.Hour)
		if w.mu.Lock(); !w.calmed[1] || !w.calmed[2] {
			t.Error("not calmed when the walk went on")
		}
		w.mu.Unlock()
	})
}

func TestForeignNamespace(t *testing.T) {
	bubble(t, "foreign", func(t *testing.T, w *world, a *Agent) {
		a.Covers = func(uint32) bool { return false }
		if _, err := a.Judge(context.Background(), w.report(w.add(1, 0, nil), 0)); !errors.Is(err, ErrForbidden) {
			t.Errorf("%v, want ErrForbidden", err)
		}
	})
}

// TestLeaver: when whoever asked has left, the verdict is carried out all the
// same.
func TestLeaver(t *testing.T) {
	bubble(t, "leaver", func(t *testing.T, w *world, a *Agent) {
		id := w.add(1, 10*time.Second, nil)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if _, err := a.Judge(ctx, w.report(id, 0)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, want DeadlineExceeded", err)
		}
		time.Sleep(5 * time.Second)
		if w.destroyed() != 1 {
			t.Errorf("%d destroyed, want 1", w.destroyed())
		}
	})
}
