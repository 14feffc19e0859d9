// SPDX-License-Identifier: Apache-2.0

package adopt

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/netns"
)

// node is one namespace of made-up connections, all of policy 1.
type node struct {
	t  *testing.T
	ns *netns.NS

	mu      sync.Mutex
	silent  int // connections that cost a keepalive each
	stuck   int // that wait for their peer
	refused int
	passes  []time.Time
	budgets []uint32
	err     error
	held    chan struct{} // a pass waits for it, where there is one
	begun   atomic.Int32
	takes   time.Duration
}

func newNode(t *testing.T) *node {
	ns, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ns.Close() })
	return &node{t: t, ns: ns}
}

func (n *node) All() []*netns.NS {
	own, err := n.ns.Dup()
	if err != nil {
		n.t.Error(err)
	}
	return []*netns.NS{own}
}

func (n *node) Adopt(o loader.AdoptOptions, fn func(loader.Adoption) error) (loader.AdoptStats, error) {
	n.begun.Add(1)
	time.Sleep(n.takes) // of the fake clock
	if n.held != nil {
		<-n.held
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.passes, n.budgets = append(n.passes, time.Now()), append(n.budgets, o.Budget)
	var stats loader.AdoptStats
	if n.err != nil {
		return stats, n.err
	}
	set := min(n.silent, int(o.Budget))
	n.silent -= set
	stats.Spent, stats.PutOff = uint32(set), uint64(n.silent)
	stats.Waits[loader.WaitBudget], stats.Waits[loader.WaitStuck] = uint64(n.silent), uint64(n.stuck)
	tell := func(count int, a loader.Adoption) {
		for range count {
			a.Policy = 1
			if err := fn(a); err != nil {
				n.t.Error(err)
			}
		}
	}
	tell(set, loader.Adoption{Outcome: loader.Adopted})
	tell(n.silent, loader.Adoption{Outcome: loader.Adopted, Wait: loader.WaitBudget})
	tell(n.stuck, loader.Adoption{Outcome: loader.Managed, Wait: loader.WaitStuck})
	tell(n.refused, loader.Adoption{Outcome: loader.Refused, Refusal: loader.RefusalMPTCP})
	return stats, nil
}

// run runs an adopter over the node until the test ends.
func (n *node) run(t *testing.T, rate int) *Adopter {
	a := New(Config{Kernel: n, Namespaces: n, Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Rate: rate})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- a.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return a
}

// Ten thousand silent connections are brought in line at the rate, no faster, and
// then nothing is done until the calm is over.
func TestPaced(t *testing.T) {
	n := newNode(t)
	n.silent = 10_000
	synctest.Test(t, func(t *testing.T) {
		n.run(t, 5000)
		time.Sleep(1050 * time.Millisecond)
		synctest.Wait()
		if left := n.silent; left < 4500 || left > 5000 {
			t.Errorf("%d left after a second, want some 4,500", left)
		}
		time.Sleep(1100 * time.Millisecond)
		synctest.Wait()
		if n.silent != 0 {
			t.Errorf("%d left after two seconds", n.silent)
		}
		passes := len(n.passes)
		time.Sleep(3 * time.Minute)
		if synctest.Wait(); len(n.passes) != passes {
			t.Errorf("%d passes more, want none", len(n.passes)-passes)
		}
		time.Sleep(4 * time.Minute)
		if synctest.Wait(); len(n.passes) != passes+1 {
			t.Errorf("%d passes more, want one", len(n.passes)-passes)
		}
	})
}

// Who waits for a peer is looked at less and less often; waking is heard at once.
func TestWaiting(t *testing.T) {
	n := newNode(t)
	n.stuck, n.refused = 3, 2
	synctest.Test(t, func(t *testing.T) {
		a := n.run(t, 5000)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if len(n.passes) < 20 || len(n.passes) > 26 { // 1, 2, 4, 8, 16, then each 30 s
			t.Errorf("%d passes in ten minutes", len(n.passes))
		}
		before := len(n.passes)
		a.Wake()
		if synctest.Wait(); len(n.passes) != before+1 {
			t.Errorf("%d passes after a wake", len(n.passes)-before)
		}
		c := a.Coverage().Policies[1]
		if c.Pending["stuck"] != 3 || len(c.Pending) != 1 {
			t.Errorf("coverage %+v", c)
		}
	})
}

// TestSlowPasses: passes that take longer than a round waits for them are no fault, count,
// and come no more often than connections that wait.
func TestSlowPasses(t *testing.T) {
	for _, failing := range []error{nil, errors.New("out of order")} {
		n := newNode(t)
		synctest.Test(t, func(t *testing.T) {
			n.takes, n.err, n.stuck = passLimit+time.Second, failing, 2
			t.Cleanup(func() { time.Sleep(n.takes) }) // the last pass ends, too
			a := n.run(t, 5000)
			time.Sleep(5 * time.Minute)
			synctest.Wait()
			c := a.Coverage()
			if !errors.Is(c.Err, failing) || failing == nil && c.Policies[1].Pending["stuck"] != 2 {
				t.Errorf("coverage %+v", c)
			}
			if got := n.begun.Load(); got < 5 || got > 15 {
				t.Errorf("%d passes in five minutes", got)
			}
		})
	}
}

// A pass that is held up holds up neither the round nor the end, and no second one is
// begun beside it.
func TestHeldUp(t *testing.T) {
	n := newNode(t)
	synctest.Test(t, func(t *testing.T) {
		n.held = make(chan struct{}) // of the bubble
		n.stuck = 3
		a := n.run(t, 5000)
		for range 3 { // it may just take long
			a.Wake()
			time.Sleep(2500 * time.Millisecond)
			synctest.Wait()
			if c := a.Coverage(); c.Rounds == 0 || c.Err != nil {
				t.Errorf("a pass that takes long: coverage %+v", c)
			}
		}
		time.Sleep(heldUp)
		for range 20 {
			a.Wake()
			time.Sleep(3 * time.Second)
			synctest.Wait()
			if c := a.Coverage(); c.Rounds == 0 || !errors.Is(c.Err, errHeldUp) {
				t.Errorf("coverage %+v", c)
			}
		}
		if n := n.begun.Load(); n != 1 {
			t.Errorf("%d passes", n)
		}
		// What it meets at last counts, and another round is not far.
		close(n.held)
		time.Sleep(lastLook)
		synctest.Wait()
		if c := a.Coverage(); c.Err != nil || c.Policies[1].Pending["stuck"] != 3 {
			t.Errorf("coverage %+v", c)
		}
	})
}

// A kernel that cannot adopt ends the run, and says so.
func TestUnsupported(t *testing.T) {
	n := newNode(t)
	n.err = loader.ErrUnsupported
	a := New(Config{Kernel: n, Namespaces: n, Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Rate: 1})
	if err := a.Run(t.Context()); !errors.Is(err, loader.ErrUnsupported) {
		t.Errorf("got %v", err)
	}
}
