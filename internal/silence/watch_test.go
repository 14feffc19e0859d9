// SPDX-License-Identifier: Apache-2.0

package silence

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/policy"
)

// node is a kernel of made-up connections.
type node struct {
	mu     sync.Mutex
	force  *loader.InForce
	passes []time.Time
	pass   loader.SilencePass
	err    error
}

func (n *node) InForce() *loader.InForce {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.force
}

func (n *node) Silent(fn func(loader.Suspect)) (loader.SilencePass, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.passes = append(n.passes, time.Now())
	for range n.pass.Suspects {
		fn(loader.Suspect{})
	}
	return n.pass, n.err
}

// set changes the node.
func (n *node) set(fn func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	fn()
}

// made returns how many passes were made, and forgets them.
func (n *node) made() int {
	synctest.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	made := len(n.passes)
	n.passes = nil
	return made
}

func inForce(t *testing.T, silences ...string) *loader.InForce {
	t.Helper()
	text := "version: 1\npeers:\n"
	for i, s := range silences {
		text += fmt.Sprintf("  - {name: p%d, cidrs: [10.%d.0.0/16], silence: %s}\n", i, i, s)
	}
	pol, err := policy.Parse("p", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return loader.NewInForce(pol, nil)
}

// run runs a watcher over the node until the test ends.
func (n *node) run(t *testing.T, judge func(loader.Suspect)) *Watcher {
	w := New(Config{Kernel: n, Judge: judge, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return w
}

func nobody(loader.Suspect) {}

// Where no policy has a silence nothing is done, and nothing runs; a policy that has
// one is heard at once, and so is one that has none any more.
func TestOff(t *testing.T) {
	n := &node{force: inForce(t, "off", "off")}
	on, off := inForce(t, "off", "8s"), n.force
	synctest.Test(t, func(t *testing.T) {
		w := n.run(t, nobody)
		time.Sleep(time.Hour)
		if made := n.made(); made != 0 || w.Stats() != (Stats{}) {
			t.Errorf("%d passes, %+v", made, w.Stats())
		}
		n.set(func() { n.force = on })
		w.Wake()
		if made := n.made(); made != 1 {
			t.Errorf("%d passes at once", made)
		}
		time.Sleep(time.Minute) // a pass each 1.5 to 2 s
		if made := n.made(); made < 30 || made > 40 || w.Stats().Every != 2*time.Second {
			t.Errorf("%d passes in a minute, %+v", made, w.Stats())
		}
		n.set(func() { n.force = off })
		w.Wake()
		n.made()
		time.Sleep(time.Hour)
		if made := n.made(); made != 0 || w.Stats().Every != 0 {
			t.Errorf("%d passes after it was switched off", made)
		}
	})
}

// The shortest silence says how often, within limits; before a policy is in force
// there is none.
func TestShortest(t *testing.T) {
	for _, tc := range []struct {
		want     time.Duration
		silences []string
	}{
		{0, []string{"off"}}, {250 * time.Millisecond, []string{"1s", "off", "1h"}},
		{5 * time.Second, []string{"1h", "24h"}}, {750 * time.Millisecond, []string{"4s", "3s"}},
	} {
		if got := shortest(inForce(t, tc.silences...)); got != tc.want {
			t.Errorf("%v: %v, want %v", tc.silences, got, tc.want)
		}
	}
	if got := shortest(nil); got != 0 {
		t.Errorf("without a policy: %v", got)
	}
}

// Suspects that found no room have their turn soon; a pass that takes long is
// followed by a rest, whatever waits.
func TestPaced(t *testing.T) {
	n := &node{force: inForce(t, "1h"), pass: loader.SilencePass{Suspects: 3, PutOff: 9, CPU: 100 * time.Microsecond}}
	synctest.Test(t, func(t *testing.T) {
		judged := 0
		w := n.run(t, func(loader.Suspect) { judged++ })
		time.Sleep(1050 * time.Millisecond)
		if made := n.made(); made != 11 || judged != 33 {
			t.Errorf("%d passes in a second, %d judged", made, judged)
		}
		n.set(func() { n.pass.CPU = 100 * time.Millisecond })
		time.Sleep(100 * time.Millisecond)
		n.made()
		time.Sleep(99 * time.Second)
		if made := n.made(); made < 9 || made > 11 {
			t.Errorf("%d passes of 100 ms in 99 s", made)
		}
		if s := w.Stats(); s.Passes < 20 || s.CPU < 900*time.Millisecond {
			t.Errorf("stats %+v", s)
		}
	})
}

// An error is kept, and the passes go on; that the kernel cannot ends them.
func TestErrors(t *testing.T) {
	n := &node{force: inForce(t, "4s"), err: errors.New("no memory")}
	synctest.Test(t, func(t *testing.T) {
		w := n.run(t, nobody)
		time.Sleep(10 * time.Second)
		if made := n.made(); made < 10 || w.Stats().Err == nil || w.Stats().Passes != 0 {
			t.Errorf("%d passes, %+v", made, w.Stats())
		}
		n.set(func() { n.err = nil })
		time.Sleep(2 * time.Second)
		if n.made(); w.Stats().Err != nil || w.Stats().Passes == 0 {
			t.Errorf("stats %+v", w.Stats())
		}
	})
	n.err = fmt.Errorf("silence: %w", loader.ErrUnsupported)
	w := New(Config{Kernel: n, Judge: nobody, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err := w.Run(t.Context()); !errors.Is(err, loader.ErrUnsupported) {
		t.Errorf("got %v", err)
	}
}

// A suspect that nobody could judge is told of in the next pass again, as old as it is
// by then, until a pass tells of it anew.
func TestAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pol := inForce(t, "4s").Policy
		n := &node{force: loader.NewInForce(pol, map[uint32]int{1: 0}), pass: loader.SilencePass{}}
		var w *Watcher
		var told []time.Duration
		w = n.run(t, func(s loader.Suspect) {
			told = append(told, s.Request)
			w.Again(s)
		})
		synctest.Wait()
		w.Again(loader.Suspect{Policy: 1, Request: 5 * time.Second})
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(told) < 3 || len(told) > 5 || told[0] <= 5*time.Second || told[0] > 6*time.Second || told[len(told)-1] < 8*time.Second {
			t.Errorf("told of after %v", told)
		}
	})
}

// TestOutOfStep: the passes of many nodes do not keep step.
func TestOutOfStep(t *testing.T) {
	waits := make(map[time.Duration]bool)
	for range 10 {
		waits[next(time.Second, loader.SilencePass{})] = true
	}
	if len(waits) == 1 {
		t.Errorf("always %v", waits)
	}
}
