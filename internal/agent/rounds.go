// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"slices"
	"sync"

	"github.com/sockhealth/sockhealth/internal/netns"
)

// rounds gathers what many judgements want of one namespace's sockets into few
// walks: a walk visits every socket of the namespace, however few are named.
// While one runs, the wishes that come in wait together for the next.
type rounds struct {
	sockets Sockets
	mu      sync.Mutex
	waiting map[roundKey]*round // wishes for the next walk
	running map[roundKey]bool
}

type roundKey struct {
	netns uint32
	calm  bool
}

// round is one walk. Its fields are settled when done closes.
type round struct {
	cookies []uint64
	done    chan struct{}
	reached []uint64
	err     error
}

// provoke makes the kernel probe on one socket and reports whether it reached
// it.
func (r *rounds) provoke(ns *netns.NS, cookie uint64) (bool, error) {
	return r.join(ns, cookie, roundKey{ns.Inode(), false})
}

// calm ends what provoke began.
func (r *rounds) calm(ns *netns.NS, cookie uint64) (bool, error) {
	return r.join(ns, cookie, roundKey{ns.Inode(), true})
}

// join adds a wish to the next walk and waits for it; where no walk is running
// the caller walks.
func (r *rounds) join(ns *netns.NS, cookie uint64, k roundKey) (bool, error) {
	r.mu.Lock()
	if r.waiting == nil {
		r.waiting = make(map[roundKey]*round)
		r.running = make(map[roundKey]bool)
	}
	mine := r.waiting[k]
	if mine == nil {
		mine = &round{done: make(chan struct{})}
		r.waiting[k] = mine
	}
	mine.cookies = append(mine.cookies, cookie)
	lead := !r.running[k]
	r.running[k] = true
	r.mu.Unlock()
	if lead {
		r.lead(ns, k)
	}
	<-mine.done
	_, ok := slices.BinarySearch(mine.reached, cookie)
	return ok, mine.err
}

// lead walks until no wish waits.
func (r *rounds) lead(ns *netns.NS, k roundKey) {
	for {
		r.mu.Lock()
		now := r.waiting[k]
		delete(r.waiting, k)
		if now == nil {
			delete(r.running, k)
			r.mu.Unlock()
			return
		}
		r.mu.Unlock()
		walk := r.sockets.Provoke
		if k.calm {
			walk = r.sockets.Calm
		}
		now.reached, now.err = walk(ns, now.cookies)
		slices.Sort(now.reached)
		close(now.done)
	}
}
