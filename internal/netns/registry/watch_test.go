// SPDX-License-Identifier: Apache-2.0

package registry_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/netns/registry"
)

// watch runs Watch until the test ends.
func watch(t *testing.T, r *registry.Registry, every time.Duration, wake <-chan struct{}) {
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { r.Watch(ctx, every, wake) })
	t.Cleanup(func() {
		stop()
		wg.Wait()
	})
}

// news counts what a subscriber hears of one namespace.
type news struct{ come, gone atomic.Int32 }

func listen(t *testing.T, r *registry.Registry, inode uint32) *news {
	n := new(news)
	t.Cleanup(r.Subscribe(func(ns *netns.NS, here bool) {
		if ns.Inode() != inode {
			return
		}
		if here {
			n.come.Add(1)
		} else {
			n.gone.Add(1)
		}
	}))
	return n
}

func TestWatchSeesComingAndGoing(t *testing.T) {
	labtest.NoLeak(t)
	r, s := newRegistry(t, nil), newSubject(t)
	n := listen(t, r, s.Inode())
	watch(t, r, 20*time.Millisecond, nil)
	for range 3 {
		come, gone := n.come.Load(), n.gone.Load()
		end := keepers["a process"](t, s)
		labtest.Eventually(t, patience, func() bool { return n.come.Load() == come+1 }, "the namespace is noticed")
		end()
		labtest.Eventually(t, patience, func() bool { return n.gone.Load() == gone+1 }, "its end is noticed")
	}
}

func TestWatchRefreshesWhenAsked(t *testing.T) {
	labtest.NoLeak(t)
	p := loadertest.Load(t)
	r, named, woken := newRegistry(t, p), newSubject(t), newSubject(t)
	wake := make(chan struct{})
	watch(t, r, time.Hour, wake)
	end := keepers["a TCP socket"](t, named)
	r.Unknown(named.Inode())
	labtest.Eventually(t, patience, func() bool { return knows(t, r, named.Inode()) }, "what an event named is found")
	labtest.Eventually(t, patience, func() bool { return r.Status().Unknown == 0 }, "it is no longer unknown")
	keepers["a TCP socket"](t, woken)
	wake <- struct{}{}
	labtest.Eventually(t, patience, func() bool { return knows(t, r, woken.Inode()) }, "a wish to refresh is heard")
	end()
	wake <- struct{}{}
	labtest.Eventually(t, patience, func() bool { return !knows(t, r, named.Inode()) }, "what has ended is dropped")
	close(wake) // must not be taken for wishes
}

// walks is a Walker of the test's.
type walks struct {
	residents, holders atomic.Int32
	resident           atomic.Uint32 // told of pid; 0: not
	held               atomic.Uint32 // told of pid's descriptor 3; 0: not
	pid                atomic.Int32
	slow               atomic.Int64
}

func (w *walks) Residents(_ []uint32, fn func(int, uint32)) error {
	w.residents.Add(1)
	if inode := w.resident.Load(); inode != 0 {
		fn(int(w.pid.Load()), inode)
	}
	return nil
}

func (w *walks) Holders(_ []uint32, fn func(int, int, uint32)) error {
	w.holders.Add(1)
	if inode := w.held.Load(); inode != 0 {
		fn(int(w.pid.Load()), 3, inode)
	}
	time.Sleep(time.Duration(w.slow.Load()))
	return nil
}

// However short the interval, a walk over files waits until it is needed, and
// then for a thousand times what the last took, unless somebody asks.
func TestWatchPacesWalksOverFiles(t *testing.T) {
	w := new(walks)
	w.slow.Store(int64(50 * time.Millisecond))
	r, s := newRegistry(t, w), newSubject(t)
	wake := make(chan struct{})
	watch(t, r, time.Millisecond, wake)
	walked := func(want int32, why string) {
		t.Helper()
		until := w.residents.Load() + 20
		labtest.Eventually(t, patience, func() bool { return w.residents.Load() >= until }, "refreshes")
		if got := w.holders.Load(); got != want {
			t.Errorf("%d walks over files, want %d: %s", got, want, why)
		}
	}
	walked(1, "the first")
	wake <- struct{}{}
	walked(2, "who asks gets the whole")
	if err := s.Do(func() error { w.pid.Store(int32(sleeperPID(t))); return nil }); err != nil {
		t.Fatal(err)
	}
	w.resident.Store(s.Inode())
	labtest.Eventually(t, patience, func() bool { return knows(t, r, s.Inode()) }, "the namespace is noticed")
	walked(2, "not needed")
	w.resident.Store(0) // it may have a socket left
	walked(2, "needed, but the last took 50 ms")
	w.slow.Store(0)
	w.resident.Store(s.Inode())
	wake <- struct{}{}
	walked(3, "who asks gets the whole")
	w.resident.Store(0)
	// Which takes a thousand times as long as the last walk, on a busy machine too.
	labtest.Eventually(t, 10*time.Minute, func() bool { return !knows(t, r, s.Inode()) }, "its end is noticed")
	walked(4, "needed once")
}

func TestWatchWithoutWishes(t *testing.T) {
	w := new(walks)
	r := newRegistry(t, w)
	wake := make(chan struct{})
	close(wake)
	watch(t, r, time.Hour, wake)
	until := time.Now().Add(300 * time.Millisecond)
	labtest.Eventually(t, patience, func() bool { return time.Now().After(until) }, "some time")
	if got := w.residents.Load(); got > 1 {
		t.Errorf("%d refreshes after nobody can wish any more", got)
	}
}

// A thread may have gone elsewhere before it is looked at.
func TestThreadThatHasMoved(t *testing.T) {
	labtest.Root(t)
	labtest.NoLeak(t)
	w := new(walks)
	r := newRegistry(t, w)
	w.pid.Store(int32(sleeperPID(t)))
	w.resident.Store(77)
	if err := r.Refresh(); err != nil || knows(t, r, 77) || len(inodes(r)) != 1 {
		t.Errorf("%v: %v", err, inodes(r))
	}
}

// Each namespace may ask once a minute, all together ten times a second, and what
// is remembered of them is bounded.
func TestUnknownIsBounded(t *testing.T) {
	w := new(walks)
	r := newRegistry(t, w)
	watch(t, r, time.Hour, nil)
	ask := func(least int32, inode func(i uint32) uint32) (refreshes int32, took time.Duration) {
		t.Helper()
		before, began, i := w.holders.Load(), time.Now(), uint32(0)
		labtest.Eventually(t, patience, func() bool {
			r.Unknown(inode(i))
			i++
			return w.holders.Load()-before >= least && time.Since(began) > time.Second
		}, "what was asked for")
		return w.holders.Load() - before, time.Since(began)
	}
	if got, _ := ask(1, func(uint32) uint32 { return 1 }); got != 1 {
		t.Errorf("one namespace that is not to be found asked for %d refreshes", got)
	}
	got, took := ask(2, func(i uint32) uint32 { return 2 + i })
	if most := 2 + int32(took/(100*time.Millisecond)); got > most {
		t.Errorf("%d refreshes in %s, want at most %d", got, took, most)
	}
	for inode := range uint32(100_000) {
		r.Unknown(1<<20 + inode)
	}
	refresh(t, r)
	if got := r.Status().Unknown; got != 4096 {
		t.Errorf("%d unknown, want as many as are kept", got)
	}
}

// What cannot be told is not taken for unused at once, nor for used for ever.
func TestFailingWalk(t *testing.T) {
	labtest.NoLeak(t)
	boom := errors.New("boom")
	r, s := newRegistry(t, &failing{err: boom}), newSubject(t)
	end := keepers["a process"](t, s)
	if err := r.Refresh(); !errors.Is(err, boom) {
		t.Errorf("Refresh: %v", err)
	}
	if !knows(t, r, s.Inode()) {
		t.Error("where a walk fails /proc is not asked")
	}
	end()
	for i := range 2 {
		if err := r.Refresh(); !errors.Is(err, boom) || !errors.Is(r.Status().Err, boom) {
			t.Errorf("Refresh: %v, Status: %v", err, r.Status().Err)
		}
		if !knows(t, r, s.Inode()) {
			t.Errorf("dropped at failure %d", i+1)
		}
	}
	_ = r.Refresh()
	if knows(t, r, s.Inode()) {
		t.Error("kept for ever")
	}
}

// failing cannot walk over threads.
type failing struct {
	walks
	err error
}

func (f *failing) Residents([]uint32, func(int, uint32)) error { return f.err }

// Who is told again and again and /proc never shows is hidden, also while the
// walk that told it is left out.
func TestHiddenProcess(t *testing.T) {
	for name, tell := range map[string]func(*walks){
		"resident": func(w *walks) { w.resident.Store(77) },
		"holder":   func(w *walks) { w.held.Store(77) },
	} {
		t.Run(name, func(t *testing.T) {
			w := new(walks)
			w.pid.Store(1 << 30)
			tell(w)
			r := newRegistry(t, w)
			if err := r.Refresh(); err != nil || r.Status().Denied != 0 {
				t.Errorf("Refresh: %v, %+v; want: that one has just ended", err, r.Status())
			}
			err := r.Refresh()
			if !errors.Is(err, netns.ErrPermission) || r.Status().Denied != 1 {
				t.Errorf("Refresh: %v, %+v; want it counted as hidden", err, r.Status())
			}
			var denied *netns.DeniedError
			if !errors.As(err, &denied) || !slices.Equal(denied.Named, []string{"process 1073741824 (hidden)"}) {
				t.Errorf("Refresh: %v, want the process named", err)
			}
			watch(t, r, time.Millisecond, nil)
			labtest.Eventually(t, patience, func() bool { return w.residents.Load() > 10 }, "refreshes")
			if got := r.Status(); !errors.Is(got.Err, netns.ErrPermission) || got.Denied != 1 || w.holders.Load() > 2 {
				t.Errorf("%+v after %d walks over files; want it still counted", got, w.holders.Load())
			}
			if known := inodes(r); len(known) != 1 {
				t.Errorf("%v known, want our own, whoever sees it", known)
			}
		})
	}
}
