// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sockhealth/sockhealth/internal/netns"
)

// TestHeldUp: while the kernel's mutex is held nobody waits longer than the limit,
// however many ask, and no more threads wait there than may; who comes when all of them
// do does not wait at all. When it is let go, all is as before.
func TestHeldUp(t *testing.T) {
	ns, err := netns.Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	synctest.Test(t, func(t *testing.T) {
		const limit = time.Second
		held := make(chan struct{})
		var asked atomic.Int32
		tr := New(limit)
		tr.exchange = func(question []byte) ([]byte, error) {
			asked.Add(1)
			<-held
			return question, nil
		}
		began := time.Now()
		results := make(chan error)
		for range 3 * places {
			go func() {
				_, err := tr.bounded(ns, nil)
				results <- err
			}()
		}
		for range 3 * places {
			if err := <-results; !errors.Is(err, ErrHeldUp) {
				t.Errorf("%v, want %v", err, ErrHeldUp)
			}
		}
		if took := time.Since(began); took != limit || asked.Load() != places {
			t.Errorf("waited %s with %d under way, want %s with %d", took, asked.Load(), limit, places)
		}
		if _, err := tr.bounded(ns, nil); !errors.Is(err, ErrHeldUp) || time.Since(began) != limit {
			t.Errorf("%v after %s, want %v at once", err, time.Since(began), ErrHeldUp)
		}
		close(held)
		synctest.Wait()
		for range 3 * places {
			if got, err := tr.bounded(ns, []byte("?")); err != nil || string(got) != "?" {
				t.Errorf("let go: %q, %v", got, err)
			}
		}
		synctest.Wait()
	})
}

// TestBusyMachine: a thread that waits for a processor is not conntrack that is held up,
// but one that waits for a place is.
func TestBusyMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = time.Second
		tr := New(limit)
		tr.enter = func(_ *netns.NS, fn func() error) error {
			time.Sleep(3 * limit)
			return fn()
		}
		tr.exchange = func(question []byte) ([]byte, error) {
			time.Sleep(limit / 2)
			return question, nil
		}
		if got, err := tr.bounded(nil, []byte("?")); err != nil || string(got) != "?" {
			t.Errorf("%q, %v", got, err)
		}
		tr.enter = func(_ *netns.NS, fn func() error) error { return fn() }
		for range places {
			go tr.bounded(nil, nil)
		}
		synctest.Wait()
		began := time.Now() // no place is left for half of the limit
		tr.exchange = func(question []byte) ([]byte, error) {
			time.Sleep(limit)
			return question, nil
		}
		if _, err := tr.bounded(nil, nil); !errors.Is(err, ErrHeldUp) || time.Since(began) != limit {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		time.Sleep(limit)
		gone := errors.New("no such namespace")
		tr.enter = func(*netns.NS, func() error) error { return gone }
		if _, err := tr.bounded(nil, nil); !errors.Is(err, gone) {
			t.Errorf("%v, want %v", err, gone)
		}
	})
}
