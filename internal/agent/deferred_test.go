// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/policy"
	"github.com/sockhealth/sockhealth/internal/sockets"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

// pool adds sockets to one dead peer, with cookies from 1.
func (w *world) pool(n int) []conn.ID {
	ids := make([]conn.ID, n)
	for i := range ids {
		ids[i] = w.add(uint64(i+1), 10*time.Second, nil)
	}
	return ids
}

// settled waits until nothing is judged and nobody waits for the budget.
func (w *world) settled(t *testing.T, a *Agent, within time.Duration) {
	t.Helper()
	for began := w.now(); ; time.Sleep(50 * time.Millisecond) {
		synctest.Wait()
		if s := a.Stats(); s.Judgements == 0 && s.Deferred == 0 {
			return
		}
		if w.now()-began > within {
			t.Fatalf("after %v: %+v", within, a.Stats())
		}
	}
}

// TestDeferred: a pool of 1,000 is judged at once and closed as the budget allows.
func TestDeferred(t *testing.T) {
	bubble(t, "pool", func(t *testing.T, w *world, a *Agent) {
		const pool = 1000
		w.walkTime = 10 * time.Millisecond
		ids := w.pool(pool)
		var deferred, closed, other int
		defer follow(a, func(e *Entry) {
			switch e.Result.Action {
			case ActionDeferred:
				deferred++
			case ActionClosed:
				closed++
			default:
				other++
			}
		})()
		began := w.now()
		r := judgeOne(t, a, w.report(ids[0], 2*time.Second))
		if r.Action != ActionClosed {
			t.Errorf("result %+v", r)
		}
		first := w.now()
		for w.destroyed() < pool && w.now()-began < time.Minute {
			if n, most := w.destroyed(), 51+int(50*(w.now()-first).Seconds()); n > most {
				t.Fatalf("%d closed %v after the first, %d are allowed", n, w.now()-first, most)
			}
			// Two attempts, a window and a second.
			if at := w.now() - began; at > 5300*time.Millisecond && at < 5500*time.Millisecond {
				if n := a.Stats().Verdicts[VerdictKey{"server", verdict.DeadPath}]; n < pool {
					t.Fatalf("%d of %d judged after %v", n, pool, at)
				}
			}
			time.Sleep(10 * time.Millisecond)
		}
		if took := w.now() - began; w.destroyed() != pool || took < 19*time.Second || took > 30*time.Second {
			t.Errorf("%d closed in %v", w.destroyed(), took)
		}
		w.settled(t, a, 0)
		stats := a.Stats()
		put, made := int(stats.Closes[CloseKey{"server", CauseDeadPath, ActionDeferred}]), stats.Closes[CloseKey{"server", CauseDeadPath, ActionClosed}]
		if put < 800 || put > 950 || made != pool || deferred != put || closed != pool || other != 0 {
			t.Errorf("%d deferred, %d closed; in the journal %d, %d and %d others", put, made, deferred, closed, other)
		}
		if w.walks > 600 {
			t.Errorf("%d walks", w.walks)
		}
		q := &a.queue
		if len(q.in)+len(q.owners)+len(q.lines)+len(q.order) != 0 || q.runs || len(a.ends) != 0 || len(a.handles.open) != 0 {
			t.Errorf("left over: %+v, %d ends, %d handles", q, len(a.ends), len(a.handles.open))
		}
	})
}

// strike has a pool judged with a budget of 5 closes a second, and returns when the rest waits.
func (w *world) strike(t *testing.T, a *Agent, n int) {
	t.Helper()
	w.pol.Limits = policy.Limits{PerPeer: 5, PerNode: 20}
	judgeOne(t, a, w.report(w.pool(n)[0], 2*time.Second))
	for began := w.now(); a.Stats().Deferred == 0; time.Sleep(10 * time.Millisecond) {
		if w.now()-began > 10*time.Second {
			t.Fatalf("nobody waits: %+v", a.Stats())
		}
	}
	synctest.Wait()
}

// TestDeferredEvidence: what condemned a socket does not close it when its turn
// comes.
func TestDeferredEvidence(t *testing.T) {
	const pool = 80
	bubble(t, "healed", func(t *testing.T, w *world, a *Agent) {
		w.strike(t, a, pool)
		w.mu.Lock()
		for _, s := range w.sockets {
			s.attempt = answers
		}
		w.mu.Unlock()
		closed, waiting := w.destroyed(), uint64(a.Stats().Deferred)
		// Those that are kept leave their share to the next: else it took 14 s.
		w.settled(t, a, 12500*time.Millisecond)
		stats := a.Stats()
		if w.destroyed() != closed || stats.Verdicts[VerdictKey{"server", verdict.AliveSlow}] != waiting {
			t.Errorf("%d closed before, %d after, %d waited; %+v", closed, w.destroyed(), waiting, stats)
		}
	})
	bubble(t, "ended", func(t *testing.T, w *world, a *Agent) {
		w.strike(t, a, pool)
		w.mu.Lock()
		clear(w.sockets)
		w.mu.Unlock()
		closed, waiting := w.destroyed(), uint64(a.Stats().Deferred)
		w.settled(t, a, 12500*time.Millisecond)
		stats := a.Stats()
		if w.destroyed() != closed || stats.Verdicts[VerdictKey{"server", verdict.Gone}] != waiting {
			t.Errorf("%d closed before, %d after, %d waited; %+v", closed, w.destroyed(), waiting, stats)
		}
	})
	bubble(t, "only observed by then", func(t *testing.T, w *world, a *Agent) {
		w.strike(t, a, pool)
		next := *w.pol
		next.Peers = []policy.Peer{w.pol.Peers[0]}
		next.Peers[0].Observe = true
		w.mu.Lock()
		w.pol = &next
		w.mu.Unlock()
		closed := w.destroyed()
		w.settled(t, a, 30*time.Second)
		if n := a.Stats().Closes[CloseKey{"server", CauseDeadPath, ActionObserved}]; w.destroyed() != closed || n != pool-uint64(closed) {
			t.Errorf("%d closed before, %d after; %d observed", closed, w.destroyed(), n)
		}
		w.mu.Lock()
		clear(w.sockets) // or they would be watched for an hour
		w.mu.Unlock()
	})
	bubble(t, "more budget by then", func(t *testing.T, w *world, a *Agent) {
		w.strike(t, a, pool)
		next := *w.pol
		next.Limits = policy.Limits{PerPeer: 1000, PerNode: 1000}
		w.mu.Lock()
		w.pol = &next
		w.mu.Unlock()
		w.settled(t, a, 4*time.Second)
		if w.destroyed() != pool {
			t.Errorf("%d closed", w.destroyed())
		}
	})
}

// TestDeferredEnd: how a socket ends that waits is told, although others ask about it
// meanwhile, and so is the rest of its record.
func TestDeferredEnd(t *testing.T) {
	bubble(t, "bound", func(t *testing.T, w *world, a *Agent) {
		w.strike(t, a, 60)
		w.mu.Lock()
		called := w.add(1000, 10*time.Second, nil)
		w.mu.Unlock()
		if r := judgeOne(t, a, w.report(called, 0)); r.Action != ActionDeferred {
			t.Fatalf("result %+v", r)
		}
		w.mu.Lock()
		var left []conn.ID
		for _, s := range w.sockets {
			s.attempt = answers
			left = append(left, s.snap.ID)
		}
		w.mu.Unlock()
		for _, id := range left { // comes, and goes
			go a.Judge(context.Background(), w.report(id, 0))
		}
		time.Sleep(100 * time.Millisecond)
		_, told, _ := a.After(0)
		w.mu.Lock()
		clear(w.sockets)
		w.mu.Unlock()
		for _, id := range left {
			a.ended(&loader.Event{ID: id, Cause: loader.CauseIdle})
		}
		w.settled(t, a, 15*time.Second)
		n, calls := 0, 0
		for _, e := range Entries(a, told) {
			if e.Result.Verdict != verdict.Gone {
				continue
			}
			n++
			if e.Reporter == reporterCall && e.ID == called {
				calls++
			}
			if e.Result.Reason != verdict.ReasonBound || e.Result.Revision != w.pol.Revision || e.Reporter == reporterCall && e.Result.Delivery == "" {
				t.Errorf("by %s: %+v", e.Reporter, e.Result)
			}
		}
		if n < 10 || calls != 1 || len(a.ends) != 0 {
			t.Errorf("%d ended of %d, %d wait for an end", n, len(left), len(a.ends))
		}
	})
}

// TestDeferredOnce: who waits is not judged again for its siblings, waits once
// however often it is reported, and is closed once, and counted.
func TestDeferredOnce(t *testing.T) {
	bubble(t, "once", func(t *testing.T, w *world, a *Agent) {
		const pool = 30
		w.strike(t, a, pool)
		time.Sleep(time.Second)
		_, told, _ := a.After(0)
		a.queue.mu.Lock()
		waiting := make(map[uint64]bool)
		for _, l := range a.queue.lines {
			for _, d := range l {
				waiting[d.j.before.Cookie] = true
			}
		}
		a.queue.mu.Unlock()
		if len(waiting) < pool/2 {
			t.Fatalf("%d wait", len(waiting))
		}
		for range 2 {
			for c := range waiting {
				w.mu.Lock()
				r := w.report(w.sockets[c].snap.ID, 0)
				w.mu.Unlock()
				go a.Judge(context.Background(), r)
			}
		}
		time.Sleep(3500 * time.Millisecond)
		a.queue.mu.Lock()
		times := make(map[uint64]int)
		for _, l := range a.queue.lines {
			for _, d := range l {
				times[d.j.before.Cookie]++
			}
		}
		a.queue.mu.Unlock()
		for c, n := range times {
			if n > 1 {
				t.Errorf("socket %d waits %d times", c, n)
			}
		}
		w.settled(t, a, 20*time.Second)
		closed := a.Stats().Closes[CloseKey{"server", CauseDeadPath, ActionClosed}]
		if w.destroyed() != pool || closed != pool {
			t.Errorf("%d closed, %d counted", w.destroyed(), closed)
		}
		// Two reports each, and a turn each; or the report found it closed.
		if n := len(Entries(a, told)); n > 3*len(waiting)+10 {
			t.Errorf("%d verdicts about %d sockets", n, len(waiting))
		}
	})
}

// TestDeferredSiblings: a sweep leaves out who waits.
func TestDeferredSiblings(t *testing.T) {
	bubble(t, "siblings", func(t *testing.T, w *world, a *Agent) {
		w.strike(t, a, 30)
		time.Sleep(time.Second)
		w.mu.Lock()
		id := w.add(1000, 10*time.Second, nil) // has not been judged
		w.mu.Unlock()
		judgeOne(t, a, w.report(id, 0))
		w.settled(t, a, 20*time.Second)
		if n := a.Stats().Verdicts[VerdictKey{"server", verdict.DeadPath}]; n > 30+25+2 {
			t.Errorf("%d verdicts in all, want 30, a turn for each that waited, and the other's", n)
		}
	})
}

// TestDeferredLines: nobody waits for the whole of another's pool.
func TestDeferredLines(t *testing.T) {
	bubble(t, "two users", func(t *testing.T, w *world, a *Agent) {
		w.strike(t, a, 300)
		for c := range uint64(5) {
			w.mu.Lock()
			id := w.add(1000+c, 10*time.Second, nil)
			w.sockets[1000+c].snap.UID = 7
			w.mu.Unlock()
			r := w.report(id, 0)
			r.Caller.UID = 7
			go a.Judge(context.Background(), r)
		}
		time.Sleep(12 * time.Second) // of 60 that it takes
		for c := range uint64(5) {
			if w.sockets[1000+c] != nil {
				t.Errorf("socket %d waits behind another user's", 1000+c)
			}
		}
		if n := w.destroyed(); n < 30 || n > 80 {
			t.Errorf("%d closed", n)
		}
	})
}

// TestDeferredFull: the queue has an end, for one user sooner; what comes beyond is
// counted.
func TestDeferredFull(t *testing.T) {
	bubble(t, "full", func(t *testing.T, w *world, a *Agent) {
		const most, over = maxDeferred / 4, 100
		w.pol.Limits = policy.Limits{PerPeer: 1, PerNode: 1}
		w.pool(1 + most + over)
		judgeOne(t, a, w.report(w.sockets[1].snap.ID, 0))
		time.Sleep(4500 * time.Millisecond)
		stats := a.Stats()
		if n := stats.Closes[CloseKey{"server", CauseDeadPath, ActionFailed}]; n < over-5 || n > over || n != stats.DeferralsRefused {
			t.Errorf("%d of %d refused; %d of them counted", n, over, stats.DeferralsRefused)
		}
		if n := stats.Deferred; n != most {
			t.Errorf("%d wait, want %d", n, most)
		}
		w.mu.Lock()
		id := w.add(10_000, 10*time.Second, nil)
		w.sockets[10_000].snap.UID = 7
		w.mu.Unlock()
		r := w.report(id, 0)
		r.Caller.UID = 7
		if r := judgeOne(t, a, r); r.Action != ActionDeferred && r.Action != ActionClosed {
			t.Errorf("another user's: %+v", r)
		}
		a.Close()
		if len(a.handles.open) != 0 {
			t.Errorf("%d handles are left", len(a.handles.open))
		}
	})
}

// TestDeferredStops: who is condemned while the agent stops finds no queue any more, and
// holds nothing.
func TestDeferredStops(t *testing.T) {
	bubble(t, "stops", func(t *testing.T, w *world, a *Agent) {
		w.strike(t, a, 40)
		a.Close()
		w.mu.Lock()
		w.add(1000, 10*time.Second, nil)
		s := w.look(w.sockets[1000])
		w.mu.Unlock()
		j := &judgement{refs: 1, ns: w.ns, before: s}
		if action := a.afford(&weighing{call: &call{}, j: j}, &s); action != ActionFailed || j.refs != 1 {
			t.Errorf("%s, %d references", action, j.refs)
		}
	})
}

// TestUnspent: a close that finds nothing to close leaves its share to others.
func TestUnspent(t *testing.T) {
	bubble(t, "gone", func(t *testing.T, w *world, a *Agent) {
		w.destroyErr = sockets.ErrGone
		w.pol.Limits = policy.Limits{PerPeer: 1, PerNode: 1}
		if r := judgeOne(t, a, w.report(w.add(1, 10*time.Second, nil), 0)); r.Verdict != verdict.Gone {
			t.Fatalf("result %+v", r)
		}
		a.queue.mu.Lock()
		defer a.queue.mu.Unlock()
		if b := &a.queue.budget; b.node.whole > w.now() {
			t.Errorf("%+v", b)
		}
	})
}
