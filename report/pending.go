// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"sync"
)

// pending counts the requests that are kept for their verdict. The zero value
// is ready for use.
type pending struct {
	mu     sync.Mutex
	idle   sync.Cond // n fell to 0
	n      int
	closed bool
	ctx    context.Context // ended by close; made by the first enter
	stop   context.CancelFunc
}

// enter takes one of limit places, to be given back by leave. The context ends
// with close.
func (p *pending) enter(limit int) (ctx context.Context, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.n >= limit {
		return nil, false
	}
	if p.ctx == nil {
		p.ctx, p.stop = context.WithCancel(context.Background())
	}
	p.n++
	return p.ctx, true
}

func (p *pending) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
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
