// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/prober"
	"github.com/sockhealth/sockhealth/internal/wait"
)

const (
	// maxWalks bounds the walks over one namespace at a time.
	maxWalks = 8
	// maxCalls bounds the looks at one time, each of which needs descriptors and
	// a thread for a moment.
	maxCalls = 64
	// maxTracks bounds the sends at one time, and also the questions who answers for a
	// peer. Both ask conntrack, which somebody else's flush may hold up: a send waits
	// there for a moment, a question for longer, so that neither looks nor sends wait
	// behind questions.
	maxTracks = 32
	// complainEvery is the least time between two lines that say that it could not be asked
	// who answers.
	complainEvery = time.Minute
)

// bounded runs fn, which may be held up by a socket that an application keeps
// locked, and waits no longer than walkLimit. The error is fn's, or errHeldUp;
// fn then goes on alone. free is called when fn has ended, or cannot be run.
func (a *Agent) bounded(ns *netns.NS, free func(), fn func(ns *netns.NS) error) error {
	own, err := a.handles.hold(ns)
	if err != nil {
		free()
		return err
	}
	done := make(chan error, 1)
	go func() {
		defer a.handles.drop(own)
		err := fn(own)
		free()
		done <- err
	}()
	err, ok := wait.Within(done, walkLimit)
	if !ok {
		return errHeldUp
	}
	return err
}

// places are those for walks over one namespace.
type places struct {
	taken chan struct{} // who waits sends, first come, first served
	users int           // who hold one or wait; held by Agent.mu
}

// errFull says that all places for walks over a namespace were held for walkLimit. It is
// ErrBusy.
var errFull error = full{}

type full struct{}

func (full) Error() string        { return "too many walks over sockets under way [try again in a second]" }
func (full) Is(target error) bool { return target == ErrBusy }

// place takes one of the places for walks over a namespace, and waits for it up to
// walkLimit: a walk takes milliseconds as a rule, but all places may be held by walks that
// do not come to their end. free gives it back. The error is errFull or ErrStopped.
func (a *Agent) place(k uint32) (free func(), err error) {
	p := a.placesOf(k)
	free = func() {
		<-p.taken
		a.leavePlaces(k, p)
	}
	limit := time.NewTimer(walkLimit)
	defer limit.Stop()
	select {
	case p.taken <- struct{}{}:
		return free, nil
	case <-limit.C:
		err = errFull
	case <-a.ctx.Done():
		err = ErrStopped
	}
	select { // what is there is in time, however late this process looks
	case p.taken <- struct{}{}:
		return free, nil
	default:
		a.leavePlaces(k, p)
		return nil, err
	}
}

// placesOf returns the places for a namespace, for one more user.
func (a *Agent) placesOf(k uint32) *places {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.walks[k]
	if p == nil {
		p = &places{taken: make(chan struct{}, maxWalks)}
		a.walks[k] = p
	}
	p.users++
	return p
}

// leavePlaces says that a user of them needs them no more.
func (a *Agent) leavePlaces(k uint32, p *places) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p.users--; p.users == 0 {
		delete(a.walks, k)
	}
}

// walked runs what looks for sockets by a walk, or a list where the kernel has
// no walk, in one of the places for that.
func (a *Agent) walked(ns *netns.NS, look func(ns *netns.NS) ([]conn.Snapshot, error)) ([]conn.Snapshot, error) {
	free, err := a.place(ns.Inode())
	if err != nil {
		return nil, err
	}
	var found []conn.Snapshot // nobody's but fn's until it has ended
	err = a.bounded(ns, free, func(ns *netns.NS) (err error) {
		found, err = look(ns)
		return err
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}

// Scan returns the sockets of a namespace that match. It waits for a socket that an
// application keeps locked no longer than a judgement does; with that error match may
// still be called afterwards. It waits as long before, where too many walks are under
// way; the error wraps ErrBusy where that did not help, and ErrStopped where the agent
// stopped meanwhile.
func (a *Agent) Scan(ns *netns.NS, match func(*conn.Snapshot) bool) ([]conn.Snapshot, error) {
	return a.walked(ns, func(ns *netns.NS) (found []conn.Snapshot, err error) {
		err = a.Sockets.Scan(ns, func(s conn.Snapshot) error {
			if match(&s) {
				found = append(found, s)
			}
			return nil
		})
		return found, err
	})
}

// Find is sockets.Find, and waits no longer than Scan does.
func (a *Agent) Find(ns *netns.NS, local netip.AddrPort, cookie uint64) ([]conn.Snapshot, error) {
	return a.walked(ns, func(ns *netns.NS) ([]conn.Snapshot, error) { return a.Sockets.Find(ns, local, cookie) })
}

// again looks once more at a socket. Where its application holds the lock, what
// comes meanwhile does not show: it waits a moment for a look without.
func (a *Agent) again(ns *netns.NS, id conn.ID) (conn.Snapshot, error) {
	const tries, pause = 10, 5 * time.Millisecond
	for try := 1; ; try++ {
		s, err := a.lookOnce(ns, id)
		if err != nil || !s.Locked || try == tries || a.ctx.Err() != nil {
			return s, err
		}
		a.pause(pause)
	}
}

// lookOnce looks, when it is its turn.
func (a *Agent) lookOnce(ns *netns.NS, id conn.ID) (conn.Snapshot, error) {
	a.turns <- struct{}{}
	defer func() { <-a.turns }()
	return a.Sockets.Again(ns, id)
}

// localLeg reports whether a proxy on this host answers for the peer; unknown: that
// could not be found out. The log tells of it once in complainEvery: the verdicts say it
// each time, and what holds up conntrack concerns them all.
func (a *Agent) localLeg(ns *netns.NS, s *conn.Snapshot) (local, unknown bool) {
	a.legs <- struct{}{}
	defer func() { <-a.legs }()
	local, err := a.Sockets.LocalLeg(ns, s)
	if err == nil {
		return local, false
	}
	now := int64(a.Now())
	if last := a.complained.Load(); last == 0 || now-last >= int64(complainEvery) {
		if a.complained.CompareAndSwap(last, now) {
			a.Log.Warn("ask who answers for the peer", "socket", s.ID.String(), "err", err)
		}
	}
	return false, true
}

// send sends one segment, when it is its turn.
func (a *Agent) send(ns *netns.NS, s *conn.Snapshot) (prober.Sent, error) {
	a.sends <- struct{}{}
	defer func() { <-a.sends }()
	return a.Prober.Send(ns, s)
}
