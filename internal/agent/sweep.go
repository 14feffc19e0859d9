// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"net/netip"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/netns"
)

// sweepKey names the siblings of a socket: those to the same service at the
// same peer. The service is the peer's port for outbound connections, ours for
// inbound ones, whose peer's port is any.
type sweepKey struct {
	netns     uint32
	peer      netip.Addr
	direction conn.Direction
	port      uint16
}

func siblingsOf(s *conn.Snapshot) sweepKey {
	k := sweepKey{s.Netns, s.Remote.Addr(), s.Record.Direction, s.Remote.Port()}
	if k.direction == conn.Inbound {
		k.port = s.Local.Port()
	}
	return k
}

const (
	// sweepTries is how often siblings are looked for, sweepPause apart, where that does
	// not come about. A try may leave a walk that is held up in its place: these take half
	// of the places.
	sweepTries = maxWalks / 2
	sweepPause = 5 * time.Second
)

// kin are sweeps of one namespace, by whose siblings they look for.
type kin map[sweepKey]*sweeping

// sweeping is a sweep that waits for a walk.
type sweeping struct {
	self  uint64 // the cookie of the silent socket
	tries int    // that came to nothing
}

// sweep asks about every other managed socket of the namespace to the same
// peer, each with a full window of its own and judged alone, if somebody whose
// call it is wants to know. It returns at once, whether that is so.
func (a *Agent) sweep(j *judgement) bool {
	k := siblingsOf(&j.before)
	a.mu.Lock()
	defer a.mu.Unlock()
	if !j.sweeps || a.stopped {
		return false
	}
	if a.sweeps[k] {
		return true
	}
	waiting, walks := a.sweeping[k.netns]
	if !walks {
		ns, err := a.handles.hold(j.ns)
		if err != nil {
			a.Log.Warn("sweep siblings", "peer", k.peer.String(), "err", err)
			return false
		}
		waiting = make(kin)
		a.sweeping[k.netns] = waiting
		a.work.Go(func() { a.sweepAll(ns) })
	}
	a.sweeps[k], waiting[k] = true, &sweeping{self: j.before.Cookie}
	return true
}

// sweepAll walks until no sweep of the namespace waits. What comes in during a walk, or
// during the pause after one that came to nothing, shares the next: many services die at
// once where a peer does.
func (a *Agent) sweepAll(ns *netns.NS) {
	defer a.handles.drop(ns)
	for {
		now := a.nextSweeps(ns.Inode())
		if len(now) == 0 {
			return
		}
		found, err := a.siblings(ns, now)
		switch {
		case a.ctx.Err() != nil:
			return
		case err == nil:
			for k, one := range now {
				a.judgeSiblings(ns, k, one, found[k])
			}
		case a.sweepAgain(ns, now, err):
			a.pause(sweepPause)
		}
	}
}

// nextSweeps returns those that wait; where none does, nobody walks from then on.
func (a *Agent) nextSweeps(inode uint32) kin {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.sweeping[inode]
	if len(now) == 0 {
		delete(a.sweeping, inode)
	} else {
		a.sweeping[inode] = make(kin)
	}
	return now
}

// siblings finds those that sweeps ask for, by one walk.
func (a *Agent) siblings(ns *netns.NS, of kin) (map[sweepKey][]conn.Snapshot, error) {
	list, err := a.Scan(ns, func(s *conn.Snapshot) bool {
		if !s.HasRecord || s.Cookie == 0 || !s.State.Judgeable() || s.Orphan {
			return false
		}
		one := of[siblingsOf(s)]
		return one != nil && s.Cookie != one.self && !a.underWay(s) && !a.queue.waits(s)
	})
	found := make(map[sweepKey][]conn.Snapshot)
	for _, s := range list {
		k := siblingsOf(&s)
		found[k] = append(found[k], s)
	}
	return found, err
}

// judgeSiblings starts or joins a judgement for each, and lets no second sweep of the
// same siblings start until all have ended.
func (a *Agent) judgeSiblings(ns *netns.NS, k sweepKey, one *sweeping, found []conn.Snapshot) {
	own, err := a.handles.hold(ns)
	if err != nil {
		a.sweepAgain(ns, kin{k: one}, err)
		return
	}
	if !a.start(func() {
		defer a.handles.drop(own)
		a.judgeAll(a.ctx, &call{ns: own, sent: a.Now(), reporter: reporterSweep}, found)
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.sweeps, k)
	}) {
		a.handles.drop(own)
	}
}

// sweepAgain has those wait for another walk that may still have one, and reports
// whether there are any. The others are given up.
func (a *Agent) sweepAgain(ns *netns.NS, these kin, err error) bool {
	lost := a.sweepLater(ns.Inode(), these, errors.Is(err, loader.ErrUnsupported))
	if lost > 0 {
		a.stats.notSwept(lost)
		a.Log.Warn("sweep siblings", "netns", ns.Inode(), "services", lost, "err", err)
	}
	return lost < len(these)
}

// sweepLater puts sweeps back and returns how many are given up, which are all where
// never says so.
func (a *Agent) sweepLater(inode uint32, these kin, never bool) (lost int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for k, one := range these {
		if one.tries++; never || one.tries == sweepTries {
			delete(a.sweeps, k)
			lost++
			continue
		}
		a.sweeping[inode][k] = one
	}
	return lost
}
