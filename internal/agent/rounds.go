// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/wait"
)

// walkLimit is how long a walk over the sockets of a namespace may take before
// nobody waits for it any more. It takes half a microsecond a socket, but also
// the lock of each: one application that is stuck in the kernel with a socket
// locked holds up the walk, for as long as it likes.
const walkLimit = 2 * time.Second

// errHeldUp says that a walk did not come to its end in walkLimit.
var errHeldUp = errors.New("held up by a locked socket")

// rounds gathers what many judgements want of one namespace's sockets into few
// walks: a walk visits every socket of the namespace, however few are named.
// While one runs, the wishes that come in wait together for the next.
type rounds struct {
	sockets Sockets
	handles *handles

	mu      sync.Mutex
	waiting map[uint32]*round    // wishes for the next walk, by namespace
	running map[uint32]time.Time // since when a walk runs
}

// round is one walk: sockets to provoke, then sockets to calm. Its results are
// settled when done closes.
type round struct {
	provoke, calm []uint64
	done          chan struct{}
	reached       []uint64 // sorted
	err           error
}

// provoke makes the kernel probe on one socket and reports whether it reached
// it. The error is errHeldUp where that took too long.
func (r *rounds) provoke(ns *netns.NS, cookie uint64) (bool, error) {
	return r.join(ns, cookie, false)
}

// calm ends what provoke began. Where it is held up it happens later, after
// the provocation that was held up, too.
func (r *rounds) calm(ns *netns.NS, cookie uint64) (bool, error) {
	return r.join(ns, cookie, true)
}

// join adds a wish to the next walk and waits for it.
func (r *rounds) join(ns *netns.NS, cookie uint64, calm bool) (bool, error) {
	mine, err := r.add(ns, cookie, calm)
	if err != nil {
		return false, err
	}
	if _, ok := wait.Within(mine.done, walkLimit); !ok {
		return false, errHeldUp
	}
	_, ok := slices.BinarySearch(mine.reached, cookie)
	return ok, mine.err
}

// add puts the wish where the next walk finds it, and sees to it that one comes.
func (r *rounds) add(ns *netns.NS, cookie uint64, calm bool) (*round, error) {
	k := ns.Inode()
	r.mu.Lock()
	defer r.mu.Unlock()
	since, runs := r.running[k]
	if runs && time.Since(since) > walkLimit && !calm {
		return nil, errHeldUp
	}
	mine := r.waiting[k]
	if mine == nil {
		mine = &round{done: make(chan struct{})}
	}
	if !runs {
		own, err := r.handles.hold(ns)
		if err != nil {
			return nil, err
		}
		if r.running == nil {
			r.running = make(map[uint32]time.Time)
			r.waiting = make(map[uint32]*round)
		}
		r.running[k] = time.Now()
		go r.lead(own)
	}
	r.waiting[k] = mine
	if calm {
		// While a walk is held up the same socket may ask again and again.
		if !runs || time.Since(since) < walkLimit || !slices.Contains(mine.calm, cookie) {
			mine.calm = append(mine.calm, cookie)
		}
	} else {
		mine.provoke = append(mine.provoke, cookie)
	}
	return mine, nil
}

// lead walks until no wish waits. Nobody waits for its end: it may be held up.
func (r *rounds) lead(ns *netns.NS) {
	defer r.handles.drop(ns)
	k := ns.Inode()
	for {
		r.mu.Lock()
		now := r.waiting[k]
		delete(r.waiting, k)
		if now == nil {
			delete(r.running, k)
			r.mu.Unlock()
			return
		}
		r.running[k] = time.Now()
		r.mu.Unlock()
		r.walk(ns, now)
		close(now.done)
	}
}

// walk fulfils the wishes of one round.
func (r *rounds) walk(ns *netns.NS, now *round) {
	if len(now.provoke) > 0 {
		now.reached, now.err = r.sockets.Provoke(ns, now.provoke)
	}
	if len(now.calm) > 0 {
		reached, err := r.sockets.Calm(ns, now.calm)
		now.reached = append(now.reached, reached...)
		now.err = errors.Join(now.err, err)
	}
	slices.Sort(now.reached)
}
