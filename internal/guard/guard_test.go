// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/policy"
)

// node is one namespace of made-up connections.
type node struct {
	t      *testing.T
	ns     *netns.NS
	policy time.Duration // its user timeout

	mu      sync.Mutex
	shut    int // connections, all of policy 1
	least   time.Duration
	surveys []time.Time
	passes  []time.Time
	asked   time.Duration // the interval of the last pass
	err     error
	away    bool          // what is shut is in a namespace out of reach
	held    chan struct{} // a pass waits for it, where there is one
	takes   time.Duration // a pass
	failing error         // passes fail of it

	surveyCPU, passCPU time.Duration // what each takes
	used               time.Duration
}

// made returns how many surveys and passes there were.
func (n *node) made() (surveys, passes int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.surveys), len(n.passes)
}

// told returns the interval that the last pass was told.
func (n *node) told() time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.asked
}

// cpu is a clock of the CPU.
func (n *node) cpu() time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.used
}

func newNode(t *testing.T) *node {
	ns, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ns.Close() })
	return &node{t: t, ns: ns, policy: 15 * time.Second}
}

func (n *node) All() []*netns.NS {
	own, err := n.ns.Dup()
	if err != nil {
		n.t.Error(err)
	}
	return []*netns.NS{own}
}

func (n *node) InForce() *loader.InForce {
	p := &policy.Policy{Peers: []policy.Peer{{Options: conn.Options{UserTimeout: n.policy}}}}
	return loader.NewInForce(p, map[uint32]int{1: 0})
}

func (n *node) SurveyWindows() (loader.Survey, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.surveys = append(n.surveys, time.Now())
	n.used += n.surveyCPU
	s := loader.Survey{Shut: make(map[uint32]uint32), Shortest: n.least}
	if n.away {
		s.Shut[n.ns.Inode()+1] = uint32(n.shut)
	} else if n.shut > 0 {
		s.Shut[n.ns.Inode()] = uint32(n.shut)
	}
	return s, n.err
}

func (n *node) Guard(interval time.Duration, fn func(loader.Guarded) error) error {
	n.mu.Lock()
	n.passes, n.asked = append(n.passes, time.Now()), interval
	n.used += n.passCPU
	shut, held := n.shut, n.held
	n.mu.Unlock()
	if held != nil {
		<-held
	}
	time.Sleep(n.takes) // of the fake clock
	if n.failing != nil {
		return n.failing
	}
	for range shut {
		if err := fn(loader.Guarded{Policy: 1, Step: loader.GuardKept}); err != nil {
			return err
		}
	}
	return fn(loader.Guarded{Policy: 1, Step: loader.GuardEnded})
}

// run runs a guard over the node until the test ends.
func (n *node) run(t *testing.T) *Guard {
	g := New(Config{Kernel: n, Namespaces: n, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	g.cpu = n.cpu
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- g.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return g
}

// The end of Run comes after a last round: peers that read by then have theirs back.
func TestLastRound(t *testing.T) {
	n := newNode(t)
	synctest.Test(t, func(t *testing.T) {
		n.shut = 1
		ctx, cancel := context.WithCancel(t.Context())
		g := New(Config{Kernel: n, Namespaces: n, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
		done := make(chan error)
		go func() { done <- g.Run(ctx) }()
		synctest.Wait()
		cancel()
		if err := <-done; err != nil || len(n.surveys) != 2 || len(n.passes) != 2 {
			t.Errorf("%d surveys and %d passes (%v), want 2 and 2", len(n.surveys), len(n.passes), err)
		}
	})
}

// Namespaces are walked only where a window is shut, every third of the shortest user
// timeout, of the policy or of a connection.
func TestEvery(t *testing.T) {
	n := newNode(t)
	synctest.Test(t, func(t *testing.T) {
		g := n.run(t)
		time.Sleep(time.Minute)
		synctest.Wait()
		if surveys, passes := n.made(); surveys != 61 || passes != 0 {
			t.Errorf("%d surveys and %d passes in a minute without a shut window, want 61 and 0", surveys, passes)
		}
		n.mu.Lock()
		n.shut, n.least = 2, 1500*time.Millisecond
		n.mu.Unlock()
		time.Sleep(5 * time.Second) // the round that finds it, 1 to 5 s from now
		synctest.Wait()
		_, before := n.made()
		time.Sleep(time.Minute)
		synctest.Wait()
		if _, got := n.made(); got-before != 120 || n.told() != time.Second/2 {
			t.Errorf("%d passes in a minute, of %s each, want 120 of 500ms", got-before, n.told())
		}
		if s := g.Status(); s.Guarded[1] != 2 || s.Interval != time.Second/2 || s.Err != nil {
			t.Errorf("status %+v", s)
		}
		n.mu.Lock()
		n.shut = 0
		n.mu.Unlock()
		time.Sleep(2 * time.Second)
		if synctest.Wait(); len(g.Status().Guarded) != 0 {
			t.Errorf("status %+v", g.Status())
		}
	})
}

func TestEveryBounds(t *testing.T) {
	g := New(Config{Kernel: newNode(t)})
	slow := newNode(t)
	slow.policy = time.Hour
	for _, tt := range []struct {
		of          *Guard
		least, cost time.Duration
		want        time.Duration
	}{
		{g, 0, 0, longest},
		{g, 1500 * time.Millisecond, 0, time.Second / 2},
		{g, time.Millisecond, 0, shortest},
		{g, time.Hour, 0, longest},
		{New(Config{Kernel: slow}), 0, 0, longest},
		{g, 0, 10 * time.Millisecond, longest},
		{g, 0, 30 * time.Millisecond, 2970 * time.Millisecond}, // 1 % of a processor
		{g, 0, 100 * time.Millisecond, 5 * time.Second},        // a third of the policy's 15 s
		{g, 1500 * time.Millisecond, 100 * time.Millisecond, time.Second / 2},
		{New(Config{Kernel: slow}), 0, time.Second, furthest},
	} {
		if got := tt.of.every(tt.least, tt.cost); got != tt.want {
			t.Errorf("every %s for a user timeout of %s at %s a round, want %s", got, tt.least, tt.cost, tt.want)
		}
	}
}

// A round that is dear, by its survey or by its passes, has the next one come later, and
// what passes are told is the time to the next.
func TestPace(t *testing.T) {
	for _, tt := range []struct {
		survey, pass time.Duration // of the CPU
		shut, rounds int           // in the minute after the first two
		every        time.Duration
	}{
		{2 * time.Millisecond, 6 * time.Millisecond, 1, 60, time.Second},
		{20 * time.Millisecond, 80 * time.Millisecond, 0, 30, 1980 * time.Millisecond},
		{20 * time.Millisecond, 10 * time.Millisecond, 1, 20, 2970 * time.Millisecond},
		{20 * time.Millisecond, 80 * time.Millisecond, 1, 12, 5 * time.Second},
	} {
		n := newNode(t)
		synctest.Test(t, func(t *testing.T) {
			n.shut, n.surveyCPU, n.passCPU = tt.shut, tt.survey, tt.pass
			g := n.run(t)
			time.Sleep(2 * furthest)
			synctest.Wait()
			before, _ := n.made()
			time.Sleep(time.Minute)
			synctest.Wait()
			if got, _ := n.made(); got-before != tt.rounds {
				t.Errorf("%+v: %d rounds in a minute", tt, got-before)
			}
			if got := g.Status().Interval; got != tt.every || tt.shut > 0 && n.told() != tt.every {
				t.Errorf("%+v: every %s, passes are told %s", tt, got, n.told())
			}
		})
	}
}

// A pass that is held up holds up no round, and no second one is begun beside it. It is
// told when the next round meets it.
func TestHeldUp(t *testing.T) {
	n := newNode(t)
	synctest.Test(t, func(t *testing.T) {
		n.held, n.shut = make(chan struct{}), 1 // of the bubble
		g := n.run(t)
		time.Sleep(passLimit * 3 / 2)
		synctest.Wait()
		if s := g.Status(); s.Rounds != 1 || s.Err != nil {
			t.Errorf("a pass that takes long: status %+v", s)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if s := g.Status(); len(n.passes) != 1 || s.Rounds < 10 || !errors.Is(s.Err, errHeldUp) {
			t.Errorf("%d passes, status %+v", len(n.passes), s)
		}
		close(n.held)
		time.Sleep(6 * time.Second)
		if synctest.Wait(); g.Status().Err != nil || len(n.passes) < 2 {
			t.Errorf("%d passes, status %+v", len(n.passes), g.Status())
		}
	})
}

// TestSlowPasses: passes that take longer than a round waits for them are no fault; what
// they fail of is told.
func TestSlowPasses(t *testing.T) {
	for _, failing := range []error{nil, errors.New("out of order")} {
		n := newNode(t)
		synctest.Test(t, func(t *testing.T) {
			n.takes, n.failing, n.shut = passLimit+time.Second, failing, 1
			t.Cleanup(func() { time.Sleep(n.takes) }) // the last pass ends, too
			g := n.run(t)
			time.Sleep(10 * time.Second)
			for range 100 {
				time.Sleep(110 * time.Millisecond)
				synctest.Wait()
				if s := g.Status(); !errors.Is(s.Err, failing) {
					t.Fatalf("status %+v, want error %v", s, failing)
				}
			}
		})
	}
}

// A namespace that stays out of reach is told of, and keeps no figures of others.
func TestOutOfReach(t *testing.T) {
	n := newNode(t)
	n.shut = 1
	g := New(Config{Kernel: n, Namespaces: n, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	for i, want := range []bool{false, false, true, false} {
		n.away = i == 1 || i == 2
		if _, err := g.round(t.Context()); err != nil {
			t.Fatal(err)
		}
		s := g.Status()
		if got := s.Err != nil; got != want || len(s.Guarded) == 1 == n.away {
			t.Errorf("round %d: status %+v, want an error %t", i, s, want)
		}
	}
}

// A survey that fails forgets nothing, and what it found is seen to; a kernel that cannot guard ends the run.
func TestErrors(t *testing.T) {
	n := newNode(t)
	n.shut = 1
	g := New(Config{Kernel: n, Namespaces: n, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if _, err := g.round(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.err = errors.New("no")
	if _, err := g.round(t.Context()); err != nil || g.Status().Guarded[1] != 1 || g.Status().Err == nil || len(n.passes) != 2 {
		t.Errorf("status %+v (%v)", g.Status(), err)
	}
	n.err = loader.ErrUnsupported
	if err := g.Run(t.Context()); !errors.Is(err, loader.ErrUnsupported) {
		t.Errorf("got %v", err)
	}
}
