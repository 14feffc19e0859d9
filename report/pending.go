// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"slices"
	"sync"
)

// pending holds the places of the requests that are kept. The zero value is
// ready for use.
type pending struct {
	mu     sync.Mutex
	idle   sync.Cond // n fell to 0
	n      int       // requests that have not left
	given  int       // those of them whose place is another's already
	judged []*place  // those that wait for a late answer alone, the oldest first
	closed bool
	ctx    context.Context // ended by close; made by the first enter
	stop   context.CancelFunc
}

// place is that of one request.
type place struct {
	of *pending
	// ctx ends with close, or when a request that has no verdict yet needs the
	// place.
	ctx    context.Context
	cancel context.CancelFunc
	given  bool // to another request; held by mu
}

// enter takes one of limit places, if need be that of the request that has
// waited longest for its late answer alone. leave gives it back.
func (p *pending) enter(limit int) (*place, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	full := p.n-p.given >= limit
	if p.closed || full && len(p.judged) == 0 {
		return nil, false
	}
	if full {
		old := p.judged[0]
		p.judged = p.judged[1:]
		p.given++
		old.given = true
		old.cancel()
	}
	p.n++
	if p.ctx == nil {
		p.ctx, p.stop = context.WithCancel(context.Background())
	}
	q := &place{of: p}
	q.ctx, q.cancel = context.WithCancel(p.ctx)
	return q, true
}

// lend says that the verdict is in: the place is another request's if that
// needs it.
func (q *place) lend() {
	q.of.mu.Lock()
	defer q.of.mu.Unlock()
	q.of.judged = append(q.of.judged, q)
}

func (q *place) leave() {
	q.cancel()
	p := q.of
	p.mu.Lock()
	defer p.mu.Unlock()
	p.judged = slices.DeleteFunc(p.judged, func(one *place) bool { return one == q })
	if q.given {
		p.given--
	}
	if p.n--; p.n == 0 {
		p.idle.Broadcast()
	}
}

func (p *pending) wait() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle.L = &p.mu
	for p.n > 0 {
		p.idle.Wait()
	}
}

func (p *pending) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.stop != nil {
		p.stop()
	}
}
