// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/netns"
)

// TestFreezeBusy: a pool that takes every judgement there is for one user does not
// keep the peers from being asked.
func TestFreezeBusy(t *testing.T) {
	bubble(t, "busy", func(t *testing.T, w *world, a *Agent) {
		w.peers(6, 6)
		a.mu.Lock()
		a.owners[owner{w.ns.Inode(), 0}] = MaxOwned - 1
		a.mu.Unlock()
		wantAll(t, w.reported(t, a, 1), ActionFrozen)
		if w.destroyed() != 0 {
			t.Errorf("%d destroyed", w.destroyed())
		}
	})
}

// TestFreezeNoWay: a peer to which this host has lost its way has fallen silent, too.
func TestFreezeNoWay(t *testing.T) {
	bubble(t, "no route", func(t *testing.T, w *world, a *Agent) {
		w.peers(8, 8)
		w.mu.Lock()
		for c := uint64(2); c <= 8; c++ {
			w.sockets[c].snap.DstDevUp = false
		}
		w.mu.Unlock()
		wantAll(t, w.reported(t, a, 1), ActionFrozen)
	})
}

// TestFreezePartial: where not every connection could be looked at, closing goes on
// only where peers are heard for certain, and again when all can be looked at.
func TestFreezePartial(t *testing.T) {
	errStuck := errors.New("stuck")
	for _, test := range []struct {
		name        string
		peers, dead int
		err         error
		took        time.Duration
		want        Action
	}{
		{"nothing is known", 6, 1, errStuck, 0, ActionFrozen},
		{"held up", 6, 1, nil, 3 * time.Second, ActionFrozen},
		{"the kernel cannot walk", 6, 6, loader.ErrUnsupported, 0, ActionClosed},
	} {
		bubble(t, test.name, func(t *testing.T, w *world, a *Agent) {
			w.peers(test.peers, test.dead)
			w.scanErr, w.scanTime = test.err, test.took
			results := w.reported(t, a, 1)
			if wantAll(t, results, test.want); test.want == ActionFrozen {
				wantWhy(t, a, results, FreezeUnseen)
			}
			w.mu.Lock()
			w.scanErr, w.scanTime = nil, 0
			for c := uint64(2); c <= 6; c++ {
				w.sockets[c].attempt = answers
			}
			w.mu.Unlock()
			time.Sleep(20 * time.Second)
			if s := a.Stats(); !s.Frozen.IsZero() || s.FrozenWhy != "" {
				t.Errorf("still frozen, because %q", s.FrozenWhy)
			}
		})
	}
	for dead, well := range map[int]bool{1: true, 3: false} {
		bubble(t, fmt.Sprintf("some, of which %d are dead", dead), func(t *testing.T, w *world, a *Agent) {
			w.peers(3, dead)
			v := &partly{world: w}
			a.Sockets, a.Namespaces = v, v
			since := w.now()
			if found := a.survey(w.ns, since, since-recently, ""); !found.partial || found.peers != 3 || (found.connected >= since) != well {
				t.Errorf("since %v: %+v", since, found)
			}
		})
	}
}

// TestFreezeUnseenEnds: once all can be looked at it is as if nothing had been, however
// long that took: too few peers to tell are not this node, nor are those that were
// silent for long when it began, or of whom nothing can be known; and where most fell
// silent that is what is told.
func TestFreezeUnseenEnds(t *testing.T) {
	const soon, late = 10 * time.Second, 5 * time.Minute
	long := func(s *fakeSocket) { s.heard -= 3 * time.Minute }
	for _, test := range []struct {
		name        string
		peers, dead int
		stuck       time.Duration // how long no walk comes through
		others      func(s *fakeSocket)
		want        Freeze
	}{
		{"three dead", 3, 3, soon, nil, ""},
		{"six dead", 6, 6, soon, nil, FreezeSilent},
		{"six dead, stuck for long", 6, 6, late, nil, FreezeSilent},
		{"those that died long before do not count", 7, 6, soon, long, ""},
		{"nor do they after long", 7, 6, late, long, ""},
		{"those that cannot be asked do not count", 8, 8, soon, func(s *fakeSocket) { s.snap.MPTCP = true }, ""},
		{"nor those that were asked and nothing came of it", 8, 8, soon, func(s *fakeSocket) { s.snap.Options.KeepAlive = false }, ""},
	} {
		bubble(t, test.name, func(t *testing.T, w *world, a *Agent) {
			w.peers(test.peers, test.dead)
			for c := uint64(3); test.others != nil && c <= uint64(test.dead); c++ {
				test.others(w.sockets[c])
			}
			w.scanErr = errors.New("stuck")
			wantWhy(t, a, w.reported(t, a, 1), FreezeUnseen)
			time.Sleep(test.stuck)
			w.mu.Lock()
			w.scanErr = nil
			w.mu.Unlock()
			time.Sleep(30 * time.Second)
			if results := w.reported(t, a, 2); test.want != "" {
				wantWhy(t, a, results, test.want)
			} else {
				wantAll(t, results, ActionClosed)
			}
		})
	}
}

// partly is a world of two namespaces, one of which no walk gets through.
type partly struct {
	*world
	walks int
}

func (p *partly) All() (all []*netns.NS) {
	for range 2 {
		ns, err := p.ns.Dup()
		if err != nil {
			p.t.Fatal(err)
		}
		all = append(all, ns)
	}
	return all
}

func (p *partly) Scan(ns *netns.NS, fn func(conn.Snapshot) error) error {
	if p.walks++; p.walks%2 == 1 {
		return errors.New("stuck")
	}
	return p.world.Scan(ns, fn)
}

// many are as many namespaces, each of which takes a while to walk over; those of the
// last one are heard.
type many struct {
	*world
	n     int
	walks int
}

func (m *many) All() (all []*netns.NS) {
	for range m.n {
		ns, err := m.ns.Dup()
		if err != nil {
			m.t.Fatal(err)
		}
		all = append(all, ns)
	}
	return all
}

func (m *many) Scan(ns *netns.NS, fn func(conn.Snapshot) error) error {
	if m.walks++; m.walks < m.n {
		time.Sleep(walkLimit / 10) // of the fake clock
		return nil
	}
	return m.world.Scan(ns, fn)
}

// TestManyNamespaces: a survey is complete however long all its walks take together.
func TestManyNamespaces(t *testing.T) {
	bubble(t, "many", func(t *testing.T, w *world, a *Agent) {
		w.peers(6, 1)
		m := &many{world: w, n: 100}
		a.Sockets, a.Namespaces = m, m
		since := w.now()
		if found := a.survey(w.ns, since, since-recently, ""); found.partial || found.peers != 6 || found.connected < since {
			t.Errorf("since %v: %+v", since, found)
		}
	})
}

// TestSurveysRest: however much is judged, and while closing is frozen,
// surveys take no more than their share of the CPU.
func TestSurveysRest(t *testing.T) {
	const walk, within = 500 * time.Millisecond, time.Minute
	bubble(t, "judgements", func(t *testing.T, w *world, a *Agent) {
		w.peers(106, 100)
		w.mu.Lock()
		w.scanTime = walk
		for c := uint64(1); c <= 100; c++ {
			w.sockets[c].snap.Remote = w.sockets[1].snap.Remote
		}
		w.mu.Unlock()
		for c := uint64(1); c <= 100; c++ {
			w.mu.Lock()
			s := w.look(w.sockets[c])
			w.mu.Unlock()
			go a.judgeAll(a.ctx, &call{ns: w.ns, sent: w.now(), reporter: reporterSweep}, []conn.Snapshot{s})
			time.Sleep(within / 100)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if most := int(within/(20*walk)) + 2; w.scans > most || w.destroys < 50 {
			t.Errorf("%d surveys, %d are allowed; %d destroyed", w.scans, most, w.destroys)
		}
	})
	bubble(t, "walks that wait for a processor", func(t *testing.T, w *world, a *Agent) {
		w.peers(6, 2)
		w.scanTime, a.CPU = walk, func() time.Duration { return 0 }
		for c := uint64(1); c <= 2; c++ {
			got := w.reported(t, a, c)
			if wantAll(t, got, ActionClosed); got[0].Duration > 5*time.Second {
				t.Errorf("closed after %v", got[0].Duration)
			}
		}
	})
	bubble(t, "frozen", func(t *testing.T, w *world, a *Agent) {
		w.peers(6, 6)
		wantAll(t, w.reported(t, a, 1), ActionFrozen)
		w.mu.Lock()
		w.scanTime = walk
		before := w.scans
		w.mu.Unlock()
		time.Sleep(time.Hour)
		w.mu.Lock()
		defer w.mu.Unlock()
		if n, most := w.scans-before, int(time.Hour/(100*walk))+2; n < 50 || n > most {
			t.Errorf("%d surveys, %d are allowed", n, most)
		}
	})
}

// TestSiblingsLookEarly: no sibling waits for a survey when its window is over.
func TestSiblingsLookEarly(t *testing.T) {
	bubble(t, "early", func(t *testing.T, w *world, a *Agent) {
		w.peers(6, 1)
		w.mu.Lock()
		for c := uint64(2); c <= 6; c++ { // these take their time to answer
			w.sockets[c].attempt = func(n int) bool { return n%3 == 0 }
		}
		s := w.look(w.sockets[1])
		w.mu.Unlock()
		got := a.judgeAll(t.Context(), &call{ns: w.ns, sent: w.now(), reporter: reporterSweep}, []conn.Snapshot{s})
		if wantAll(t, got, ActionClosed); got[0].Duration != 3*time.Second {
			t.Errorf("closed after %v", got[0].Duration)
		}
	})
}
