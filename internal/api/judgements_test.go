// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/agent"
	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
)

// timers are a clock that is wound by hand.
type timers struct {
	mu  sync.Mutex
	at  time.Duration
	due []timer
}

type timer struct {
	at time.Duration
	fn func()
}

func (c *timers) after(d time.Duration, fn func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.due = append(c.due, timer{c.at + d, fn})
}

// wind lets time pass.
func (c *timers) wind(d time.Duration) {
	c.mu.Lock()
	c.at += d
	var fire, left []timer
	for _, t := range c.due {
		if t.at <= c.at {
			fire = append(fire, t)
		} else {
			left = append(left, t)
		}
	}
	c.due = left
	c.mu.Unlock()
	for _, t := range fire {
		t.fn()
	}
}

// newStore returns judgements whose time is wound by hand.
func newStore(t *testing.T) (*judgements, *timers) {
	later, clock := newBackground(), &timers{}
	s := newJudgements(later)
	s.after = clock.after
	t.Cleanup(func() {
		later.stop()
		if err := later.wait(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s, clock
}

// untilTold is a judgement that takes until it is told.
func untilTold(results []agent.Result) (judge func(context.Context) ([]agent.Result, error), tell func()) {
	told := make(chan struct{})
	return func(ctx context.Context) ([]agent.Result, error) {
		select {
		case <-told:
			return results, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}, sync.OnceFunc(func() { close(told) })
}

func mustStart(t *testing.T, s *judgements, whose identity, judge func(context.Context) ([]agent.Result, error)) *judgement {
	t.Helper()
	j, err := s.start(whose, judge)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// quick is a judgement that is in at once, of that many sockets.
func quick(n int) func(context.Context) ([]agent.Result, error) {
	return func(context.Context) ([]agent.Result, error) { return make([]agent.Result, n), nil }
}

func TestJudgementLifeCycle(t *testing.T) {
	s, clock := newStore(t)
	me := identity{1000, 1}
	judge, tell := untilTold(make([]agent.Result, 1))
	j := mustStart(t, s, me, judge)
	if len(j.id) < 26 {
		t.Errorf("id %q can be guessed", j.id)
	}
	clock.wind(time.Hour) // takes as long as it takes
	if s.find(me, j.id) != j {
		t.Error("not found while under way")
	}
	tell()
	<-j.done
	if j.err != nil || len(j.body) == 0 {
		t.Errorf("body %s, %v", j.body, j.err)
	}
	clock.wind(keepFor - 1)
	if s.find(me, j.id) != j {
		t.Errorf("gone before %s", keepFor)
	}
	for _, other := range []identity{{1001, 1}, {1000, 2}, {0, 1}} {
		if s.find(other, j.id) != nil {
			t.Errorf("%+v finds the judgement of %+v", other, me)
		}
	}
	clock.wind(1)
	if s.find(me, j.id) != nil {
		t.Errorf("still there after %s", keepFor)
	}
	s.drop(j)
	if len(s.byID) != 0 || len(s.of) != 0 || s.kept != 0 {
		t.Errorf("left: %d ids, %d callers, %d bytes", len(s.byID), len(s.of), s.kept)
	}
}

func TestJudgementsAreBounded(t *testing.T) {
	s, clock := newStore(t)
	judge, tell := untilTold(nil)
	seen := make(map[string]bool)
	var last *judgement
	for i := range maxIDs {
		last = mustStart(t, s, identity{uint32(i / maxCallerIDs), 1}, judge)
		seen[last.id] = true
	}
	if len(seen) != maxIDs {
		t.Errorf("%d different ids out of %d", len(seen), maxIDs)
	}
	if _, err := s.start(identity{0, 1}, judge); err != errManyCallerIDs {
		t.Errorf("one caller too many: %v", err)
	}
	if _, err := s.start(identity{0, 2}, judge); err != errManyIDs {
		t.Errorf("one in all too many: %v", err)
	}
	tell()
	for _, j := range s.byID {
		<-j.done
	}
	if _, err := s.start(identity{0, 1}, judge); err != errManyCallerIDs {
		t.Errorf("one too many beside kept answers: %v", err)
	}
	waitFor(t, "the answers to be kept", func() bool {
		clock.mu.Lock()
		defer clock.mu.Unlock()
		return len(clock.due) == maxIDs
	})
	clock.wind(keepFor)
	if _, err := s.start(identity{0, 1}, judge); err != nil {
		t.Errorf("when all have expired: %v", err)
	}
}

// Answers that are long fill a caller's room, and then the common one.
func TestJudgementsKeepBoundedBytes(t *testing.T) {
	labtest.NoKernel(t)
	s, clock := newStore(t)
	start := func(whose identity, n int) *judgement {
		j := mustStart(t, s, whose, quick(n))
		<-j.done
		return j
	}
	me := identity{1, 1}
	first := start(me, 1)
	n := maxCallerKept/len(first.body) - 1 // an answer nearly as long as the room
	if j := start(me, n); j.err != nil {
		t.Errorf("a long answer: %v", j.err)
	}
	if j := start(me, n); j.err != errNotKept || j.body != nil {
		t.Errorf("a second long answer: %d bytes, %v", len(j.body), j.err)
	}
	kept := 0
	for uid := range uint32(2 * maxKept / maxCallerKept) {
		if start(identity{uid, 2}, n).err == nil {
			kept++
		}
	}
	if kept == 0 || kept > maxKept/maxCallerKept || s.kept > maxKept {
		t.Errorf("%d long answers kept, %d bytes; want at most %d", kept, s.kept, maxKept)
	}
	waitFor(t, "the last answer's time to run", func() bool {
		clock.mu.Lock()
		defer clock.mu.Unlock()
		return len(clock.due) == len(s.byID)
	})
	judge, _ := untilTold(nil)
	mustStart(t, s, me, judge)
	clock.wind(keepFor)
	if s.kept != 0 || len(s.of) != 1 || s.of[me] != (tally{ids: 1}) {
		t.Errorf("left: %d bytes, %d callers, %+v", s.kept, len(s.of), s.of[me])
	}
}

// What is under way ends with the server, and nothing begins after that.
func TestJudgementsEndWithTheServer(t *testing.T) {
	s, _ := newStore(t)
	judge, _ := untilTold(nil)
	j := mustStart(t, s, identity{}, judge)
	s.later.stop()
	<-j.done
	if !errors.Is(j.err, context.Canceled) {
		t.Errorf("ended with %v", j.err)
	}
	if _, err := s.start(identity{}, judge); err != agent.ErrStopped {
		t.Errorf("start on a server that stops: %v", err)
	}
	if len(s.byID) != 1 {
		t.Errorf("%d ids, want the one that was under way", len(s.byID))
	}
}

// longResult is one as long as they get.
func longResult() agent.Result {
	ap := netip.MustParseAddrPort("[fd91:aaaa:bbbb:cccc:dddd:eeee:ffff:1111]:65535")
	return agent.Result{ID: conn.ID{Local: ap, Remote: ap, Cookie: 1<<64 - 1}, Policy: "policy", Verdict: "closed_by_peer", Action: "observed"}
}

// The documentation says what an answer takes.
func TestResultLength(t *testing.T) {
	s, _ := newStore(t)
	j := mustStart(t, s, identity{}, func(context.Context) ([]agent.Result, error) { return []agent.Result{longResult()}, nil })
	<-j.done
	if n := len(j.body); n < 250 || n > 1000 {
		t.Errorf("an answer has %d bytes for a socket, want about 500", n)
	}
}
