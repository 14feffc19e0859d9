// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/policy"
	"github.com/sockhealth/sockhealth/internal/prober"
)

// quick sends without asking conntrack.
type quick struct{}

func (quick) Send(*netns.NS, *conn.Snapshot) (prober.Sent, error) { return prober.Sent{}, nil }

// TestPlaceWithoutHandle: a walk for which there is no descriptor gives its place back.
func TestPlaceWithoutHandle(t *testing.T) {
	bubble(t, "no descriptor", func(t *testing.T, w *world, a *Agent) {
		gone, err := w.ns.Dup()
		if err != nil {
			t.Fatal(err)
		}
		gone.Close() // it cannot be opened again
		for range maxWalks + 1 {
			_, err := a.Scan(gone, func(*conn.Snapshot) bool { return true })
			if err == nil || errors.Is(err, errHeldUp) {
				t.Fatalf("%v, want that of the descriptor", err)
			}
		}
	})
}

// TestTracksHeld: while somebody flushes conntrack whatever asks it waits, and no
// look does; nor does a send behind those that ask who answers for a peer.
func TestTracksHeld(t *testing.T) {
	bubble(t, "questions", func(t *testing.T, w *world, a *Agent) {
		w.add(1, 0, nil)
		s := w.sockets[1].snap
		w.held = make(chan struct{})
		a.Prober = quick{}
		var all sync.WaitGroup
		for range maxTracks {
			all.Go(func() { a.localLeg(w.ns, &s) })
		}
		synctest.Wait()
		sent := make(chan error, 1)
		go func() {
			_, err := a.send(w.ns, &s)
			sent <- err
		}()
		synctest.Wait()
		select {
		case err := <-sent:
			if err != nil {
				t.Error(err)
			}
		default:
			t.Error("the send waits")
		}
		close(w.held)
		all.Wait()
	})
	bubble(t, "flushed", func(t *testing.T, w *world, a *Agent) {
		id := w.add(1, 0, nil)
		s := w.sockets[1].snap
		w.held = make(chan struct{})
		var all sync.WaitGroup
		for range maxCalls + maxTracks {
			all.Go(func() { a.send(w.ns, &s) })
			all.Go(func() { a.localLeg(w.ns, &s) })
		}
		synctest.Wait()
		looked := make(chan error, 1)
		go func() {
			_, err := a.lookOnce(w.ns, id)
			looked <- err
		}()
		synctest.Wait()
		select {
		case err := <-looked:
			if err != nil {
				t.Error(err)
			}
		default:
			t.Error("the look waits")
		}
		close(w.held)
		all.Wait()
		if w.sent != maxCalls+maxTracks || w.legs != maxCalls+maxTracks {
			t.Errorf("%d segments, %d questions", w.sent, w.legs)
		}
	})
}

// TestListHeldUp: a list waits for a locked socket no longer than a judgement does.
func TestListHeldUp(t *testing.T) {
	bubble(t, "held up", func(t *testing.T, w *world, a *Agent) {
		w.add(1, 0, nil)
		listed := 0
		count := func(*conn.Snapshot, *policy.Peer) { listed++ }
		if err := a.List(w.ns, count); err != nil || listed != 1 {
			t.Fatalf("%d listed, %v", listed, err)
		}
		w.scanTime = time.Hour
		began := time.Now()
		err := a.List(w.ns, count)
		if took := time.Since(began); !errors.Is(err, errHeldUp) || took > 2*walkLimit {
			t.Errorf("%v after %s", err, took)
		}
		time.Sleep(w.scanTime) // the walk ends
	})
}

// fill takes all places for walks, as walks do that are held up.
func (w *world) fill(a *Agent) (empty func()) {
	var all []func()
	for range maxWalks {
		free, err := a.place(w.ns.Inode())
		if err != nil {
			w.t.Fatal(err)
		}
		all = append(all, free)
	}
	return func() {
		for _, free := range all {
			free()
		}
	}
}

// TestWalksQueue: who finds all places for walks held waits for one, and is told to try
// again where that takes too long.
func TestWalksQueue(t *testing.T) {
	all := func(*conn.Snapshot) bool { return true }
	bubble(t, "short walks", func(t *testing.T, w *world, a *Agent) {
		w.add(1, 0, nil)
		w.scanTime = walkLimit / 10
		const n = 5 * maxWalks
		errs := make(chan error, n)
		for range n {
			go func() {
				found, err := a.Scan(w.ns, all)
				if err == nil && len(found) != 1 {
					err = errors.New("nothing found")
				}
				errs <- err
			}()
		}
		for range n {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		if len(a.walks) != 0 || w.scans != n {
			t.Errorf("%d walks; places that are left: %v", w.scans, a.walks)
		}
	})
	bubble(t, "full", func(t *testing.T, w *world, a *Agent) {
		id := w.add(1, 0, nil)
		empty := w.fill(a)
		for name, r := range map[string]Report{
			"peer":   {Caller: Caller{NS: w.ns}, Peer: id.Remote},
			"local":  {Caller: Caller{NS: w.ns}, Local: id.Local},
			"cookie": {Caller: Caller{NS: w.ns}, Cookie: id.Cookie},
		} {
			began := w.now()
			if _, err := a.Judge(t.Context(), r); !errors.Is(err, ErrBusy) || errors.Is(err, errHeldUp) || w.now()-began != walkLimit {
				t.Errorf("by %s: %v after %v", name, err, w.now()-began)
			}
		}
		empty()
		if _, err := a.Scan(w.ns, all); err != nil {
			t.Error(err)
		}
	})
	bubble(t, "stopped", func(t *testing.T, w *world, a *Agent) {
		w.fill(a)
		time.AfterFunc(time.Second, a.Close)
		began := w.now()
		if _, err := a.Scan(w.ns, all); !errors.Is(err, ErrStopped) || w.now()-began != time.Second {
			t.Errorf("%v after %v", err, w.now()-began)
		}
	})
}
