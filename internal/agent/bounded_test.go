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
