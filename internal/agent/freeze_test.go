// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"hash/maphash"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/policy"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

// peers adds one socket to each of n peers, all of them idle for ten seconds; the
// first so many are dead. Cookies count from 1.
func (w *world) peers(n, dead int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range n {
		c := uint64(i + 1)
		w.add(c, 10*time.Second, answers)
		s := w.sockets[c]
		s.snap.Remote = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 91, 2, byte(c)}), 7100)
		if i < dead {
			s.attempt = nil
		}
	}
}

// reported judges these sockets, all at once.
func (w *world) reported(t *testing.T, a *Agent, cookies ...uint64) []Result {
	t.Helper()
	results := make(chan Result, len(cookies))
	var out []Result
	for _, c := range cookies {
		var id conn.ID // of none, where it was closed
		w.mu.Lock()
		if s := w.sockets[c]; s != nil {
			id = s.snap.ID
		}
		w.mu.Unlock()
		r := w.report(id, 2*time.Second)
		r.Cookie = c
		go func() { results <- judgeOne(t, a, r) }()
	}
	for range cookies {
		out = append(out, <-results)
	}
	return out
}

func wantAll(t *testing.T, results []Result, action Action) {
	t.Helper()
	for _, r := range results {
		if r.Verdict != verdict.DeadPath || r.Action != action {
			t.Errorf("%s: %s, %s; want dead_path, %s", r.ID, r.Verdict, r.Action, action)
		}
		if frozen := action == ActionFrozen; frozen != (r.Frozen != "") {
			t.Errorf("%s: %s, because %q", r.ID, r.Action, r.Frozen)
		}
	}
}

// wantWhy demands that closing is frozen, and that all say why.
func wantWhy(t *testing.T, a *Agent, results []Result, why Freeze) {
	t.Helper()
	wantAll(t, results, ActionFrozen)
	for _, r := range results {
		if r.Frozen != why {
			t.Errorf("%s: frozen, because %q, want %q", r.ID, r.Frozen, why)
		}
	}
	if s := a.Stats(); s.Frozen.IsZero() || s.FrozenWhy != why {
		t.Errorf("frozen since %v, because %q, want %q", s.Frozen, s.FrozenWhy, why)
	}
}

// TestFreeze: all peers silent is this node, although every connection was idle and one
// alone is reported; it ends with the silence.
func TestFreeze(t *testing.T) {
	bubble(t, "all silent", func(t *testing.T, w *world, a *Agent) {
		w.peers(6, 6)
		wantAll(t, w.reported(t, a, 1), ActionFrozen)
		if w.destroyed() != 0 || a.Stats().Frozen.IsZero() {
			t.Errorf("%d destroyed, stats %+v", w.destroyed(), a.Stats())
		}
		wantAll(t, w.reported(t, a, 1, 2, 3, 4, 5, 6), ActionFrozen)
		time.Sleep(5 * time.Minute)
		wantWhy(t, a, w.reported(t, a, 2), FreezeSilent)
		if n := a.Stats().Closes[CloseKey{"server", CauseDeadPath, ActionFrozen}]; n != 8 || w.destroyed() != 0 {
			t.Errorf("%d counted, %d destroyed", n, w.destroyed())
		}
		w.mu.Lock()
		for _, s := range w.sockets {
			s.attempt = answers
		}
		w.mu.Unlock()
		for began := w.now(); !a.Stats().Frozen.IsZero(); time.Sleep(100 * time.Millisecond) {
			if w.now()-began > 10*time.Second {
				t.Fatal("still frozen ten seconds after the peers are back")
			}
		}
		w.mu.Lock()
		w.sockets[3].attempt = nil
		w.mu.Unlock()
		time.Sleep(5 * time.Second) // silence, so that keepalives are due
		wantAll(t, w.reported(t, a, 3), ActionClosed)
		if w.destroyed() != 1 {
			t.Errorf("%d destroyed", w.destroyed())
		}
	})
	bubble(t, "whoever else is heard", func(t *testing.T, w *world, a *Agent) {
		w.peers(12, 6)
		for c := uint64(7); c <= 12; c++ { // they go on talking, but no policy names them, or are at home here
			w.sockets[c].heard = w.now() + time.Hour
			if c%2 == 0 {
				w.sockets[c].snap.HasRecord = false
			} else {
				w.sockets[c].snap.Remote = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, byte(c)}), 7100)
			}
		}
		wantAll(t, w.reported(t, a, 1), ActionFrozen)
	})
	bubble(t, "ends with the connections", func(t *testing.T, w *world, a *Agent) {
		w.peers(5, 5)
		wantAll(t, w.reported(t, a, 1), ActionFrozen)
		w.mu.Lock()
		clear(w.sockets)
		w.mu.Unlock()
		time.Sleep(10 * time.Second)
		if !a.Stats().Frozen.IsZero() {
			t.Error("still frozen")
		}
	})
}

// TestFreezeAmid: the node falls silent when a judgement has just begun. What others said
// before the answer to its second attempt was due tells nothing about the rest of its
// window, as one attempt may be lost at any time.
func TestFreezeAmid(t *testing.T) {
	const rtt, second = 20 * time.Millisecond, 650 * time.Millisecond
	for after, want := range map[time.Duration]Action{
		0: ActionFrozen, 10 * time.Millisecond: ActionFrozen, second + rtt - time.Millisecond: ActionFrozen, second + rtt + time.Millisecond: ActionClosed,
	} {
		bubble(t, after.String(), func(t *testing.T, w *world, a *Agent) {
			w.peers(6, 1)
			w.sockets[1].snap.SRTT = rtt
			time.AfterFunc(after, func() {
				w.mu.Lock()
				defer w.mu.Unlock()
				for _, s := range w.sockets {
					s.attempt = nil
					if s.snap.Cookie > 1 {
						s.heard = w.now()
					}
				}
			})
			wantAll(t, w.reported(t, a, 1), want)
		})
	}
	// Before Linux 5.15 the connection's own keepalive condemns, seconds later.
	bubble(t, "confirmed", func(t *testing.T, w *world, a *Agent) {
		w.peers(6, 1)
		for c := uint64(1); c <= 6; c++ { // and those of the others, when they are asked
			s := w.sockets[c]
			s.snap.Options.Idle, s.heard = 5*time.Second, w.now()
			w.ownKeepalive(c, 4900*time.Millisecond, 0)
		}
		for at := time.Duration(0); at <= 4*time.Second; at += 100 * time.Millisecond {
			time.AfterFunc(at, func() { // they talk
				w.mu.Lock()
				defer w.mu.Unlock()
				for c := uint64(2); c <= 6; c++ {
					w.sockets[c].heard, w.sockets[c].attempt = w.now(), nil
				}
			})
		}
		wantAll(t, w.reported(t, a, 1), ActionFrozen)
	})
}

// TestNoFreeze: one peer, or a few, are not this node, and their connections are
// closed when the window has passed, whether the other peers had said something or
// had to be asked.
func TestNoFreeze(t *testing.T) {
	const window = 3 * time.Second
	for _, test := range []struct {
		name        string
		peers, dead int
		prepare     func(w *world)
	}{
		{"one of six", 6, 1, nil},
		{"a rack of four of six", 6, 4, nil},
		{"four peers are too few to tell", 4, 4, nil},
		{"those on this node do not count", 8, 4, func(w *world) {
			for c := uint64(5); c <= 8; c++ { // never heard, and each is a namespace of this node
				w.sockets[c].attempt = nil
				w.sockets[c].snap.Local = netip.AddrPortFrom(w.sockets[c].snap.Remote.Addr(), 7100)
			}
		}},
		{"those not heard for long do not count", 8, 8, func(w *world) {
			for c := uint64(5); c <= 8; c++ {
				w.sockets[c].heard -= 2 * time.Minute
			}
		}},
		{"those that cannot be asked do not count", 8, 8, func(w *world) {
			for c := uint64(5); c <= 8; c++ {
				w.sockets[c].snap.MPTCP = true
			}
		}},
		{"nor those that were asked and nothing came of it", 8, 8, func(w *world) {
			for c := uint64(5); c <= 8; c++ { // a segment of ours alone is unconfirmed
				w.sockets[c].snap.Options.KeepAlive = false
			}
		}},
		{"few are too few to tell also before an answer is due", 4, 4, func(w *world) {
			for _, s := range w.sockets {
				s.snap.SRTT = 100 * time.Millisecond
			}
		}},
		{"nor those that nobody manages", 8, 8, func(w *world) {
			for c := uint64(5); c <= 8; c++ {
				w.sockets[c].snap.HasRecord = false
			}
		}},
	} {
		bubble(t, test.name, func(t *testing.T, w *world, a *Agent) {
			w.peers(test.peers, test.dead)
			if test.prepare != nil {
				test.prepare(w)
			}
			results := w.reported(t, a, 1)
			wantAll(t, results, ActionClosed)
			if w.destroyed() != 1 || !a.Stats().Frozen.IsZero() || results[0].Duration > window+window {
				t.Errorf("%d destroyed, stats %+v, after %v", w.destroyed(), a.Stats(), results[0].Duration)
			}
			if test.dead == 1 && results[0].Duration != window {
				t.Errorf("closed after %v, want %v", results[0].Duration, window)
			}
		})
	}
}

// TestNoFreezeFar: where an answer takes longer than the next attempt is away, nobody is
// asked whether others were heard since before it was due.
func TestNoFreezeFar(t *testing.T) {
	far := func(w *world) {
		w.peers(4, 4)
		w.sockets[1].snap.SRTT = 2 * time.Second
	}
	bubble(t, "provoked", func(t *testing.T, w *world, a *Agent) {
		far(w)
		wantAll(t, w.reported(t, a, 1), ActionClosed)
	})
	bubble(t, "confirmed", func(t *testing.T, w *world, a *Agent) {
		far(w)
		w.sockets[1].snap.Options.Idle, w.sockets[1].heard = 10*time.Second, w.now()
		w.ownKeepalive(1, 9*time.Second, 0)
		wantAll(t, w.reported(t, a, 1), ActionClosed)
	})
}

// TestFreezeMeanwhile: what waits for its turn when closing freezes is not closed.
func TestFreezeMeanwhile(t *testing.T) {
	bubble(t, "deferred", func(t *testing.T, w *world, a *Agent) {
		w.strike(t, a, 40)
		w.mu.Lock()
		for c := uint64(101); c <= 130; c++ {
			w.add(c, time.Second, nil)
			w.sockets[c].snap.Remote = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 91, 2, byte(c)}), 7100)
		}
		w.mu.Unlock()
		wantAll(t, w.reported(t, a, 101), ActionFrozen)
		closed := w.destroyed()
		w.settled(t, a, 20*time.Second)
		if w.destroyed() != closed || a.Stats().Closes[CloseKey{"server", CauseDeadPath, ActionFrozen}] < 20 {
			t.Errorf("%d closed before, %d after; %+v", closed, w.destroyed(), a.Stats())
		}
	})
}

// TestFreezeAfterObserve: where the policy only observed when the survey was due, it is
// made when a reload has changed that.
func TestFreezeAfterObserve(t *testing.T) {
	bubble(t, "reload", func(t *testing.T, w *world, a *Agent) {
		w.peers(6, 6)
		w.pol.Peers[0].Observe = true
		next := *w.pol
		next.Peers = []policy.Peer{w.pol.Peers[0]}
		next.Peers[0].Observe = false
		w.again = func(s *fakeSocket) {
			if s.snap.Cookie == 1 && w.now()-time.Hour >= 3*time.Second { // the last look
				w.pol = &next
			}
		}
		wantAll(t, a.judgeAll(t.Context(), &call{ns: w.ns, sent: w.now(), reporter: reporterSweep}, []conn.Snapshot{w.look(w.sockets[1])}), ActionFrozen)
		if w.destroyed() != 0 {
			t.Errorf("%d destroyed", w.destroyed())
		}
	})
}

// TestFreezeStops: an agent that stops meanwhile closes nothing and leaves nothing.
func TestFreezeStops(t *testing.T) {
	for _, after := range []time.Duration{1500 * time.Millisecond, 3500 * time.Millisecond, 10 * time.Second} {
		bubble(t, after.String(), func(t *testing.T, w *world, a *Agent) {
			w.peers(6, 6)
			go a.Judge(context.Background(), w.report(w.sockets[1].snap.ID, 0))
			time.Sleep(after)
			a.Close()
			synctest.Wait()
			if w.destroyed() != 0 || len(a.handles.open) != 0 {
				t.Errorf("%d destroyed, %d handles left", w.destroyed(), len(a.handles.open))
			}
		})
	}
}

// TestVoices: of many peers a sample is kept, every one of them as likely, with the
// last time that it was heard.
func TestVoices(t *testing.T) {
	bubble(t, "sample", func(t *testing.T, w *world, a *Agent) {
		const peers, rounds = 1000, 200
		met := make(map[netip.Addr]int)
		for range rounds {
			found := a.survey(w.ns, w.now(), 0, FreezeSilent)
			if found.peers != 0 {
				t.Fatalf("%+v of an empty world", found)
			}
			v, other := newVoices(maphash.MakeSeed(), a.Kernel.InForce(), 0), newVoices(maphash.MakeSeed(), a.Kernel.InForce(), 0)
			other.seed = v.seed
			for i := range 3 * peers {
				s := sampleSocket(i%peers, w.now()-time.Duration(1+i/peers)*time.Second, w.now())
				if i%2 == 0 {
					v.add(w.ns, &s)
				} else {
					other.add(w.ns, &s)
				}
			}
			v.merge(other)
			list := v.others()
			if len(list) != maxVoices {
				t.Fatalf("%d peers", len(list))
			}
			for _, one := range list {
				met[one.ask.Remote.Addr()]++
				if one.heard != w.now()-time.Second || one.ask.Taken-one.ask.PacketAge != one.heard {
					t.Fatalf("heard %v ago, to be asked on one heard %v ago", w.now()-one.heard, one.ask.PacketAge)
				}
			}
		}
		// 20 times each on average, with a deviation of 4.2.
		for peer, n := range met {
			if n > 50 {
				t.Errorf("%s was in %d of %d samples", peer, n, rounds)
			}
		}
		if len(met) < peers-5 {
			t.Errorf("%d of %d peers were met", len(met), peers)
		}
	})
}

func sampleSocket(i int, heard, now time.Duration) conn.Snapshot {
	return conn.Snapshot{
		ID: conn.ID{Cookie: uint64(i + 1), Local: netip.MustParseAddrPort("10.91.1.2:1000"),
			Remote: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 92, byte(i >> 8), byte(i)}), 7100)},
		Taken: now, PacketAge: now - heard, State: conn.Established, HasRecord: true, DstDevUp: true,
		Record: conn.Record{Policy: 1, Direction: conn.Outbound},
	}
}
