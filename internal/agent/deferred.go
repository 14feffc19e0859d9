// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/policy"
)

// maxDeferred bounds the condemned sockets that wait until the budget has a close
// for them. Those of one user in one namespace are a quarter at most.
const maxDeferred = 8192

// beat is the time for which turns are gathered: judgements that begin together share
// walks. Up to half of it comes on top, at random, so that the closes of many nodes do
// not keep step. Together that is less than the budget saves up for: none is lost.
const beat = 500 * time.Millisecond

// deferral is a condemned socket that waits. When its turn comes it is judged anew:
// what condemned it may have passed since.
type deferral struct {
	j    *judgement // that condemned it; it has the namespace, and hears how the socket ends
	call call
	line line
	// taken is when a close was taken out of the budget for its turn.
	taken time.Duration
	// failures counts the turns at which the kernel could not be asked.
	failures int
}

// line is who waits behind one another: sockets of one owner to one peer. The lines
// take turns, so that none has to wait for the whole of another.
type line struct {
	owner
	peer netip.Addr
}

// queue is the budget, and who waits for it. The zero value is ready.
type queue struct {
	mu      sync.Mutex
	budget  budget
	lines   map[line][]*deferral
	order   []line        // those with somebody in them; the first one's turn is next
	in      map[key]bool  // who waits, or is being judged anew
	owners  map[owner]int // those, by whose sockets they are
	runs    bool          // dispatch does
	full    bool          // somebody was refused since nobody waited
	refused uint64
}

// closeLimits are those of the policy in force.
func (a *Agent) closeLimits() policy.Limits {
	if force := a.Kernel.InForce(); force != nil {
		return force.Policy.Limits
	}
	return policy.DefaultLimits()
}

// afford takes a close out of the budget. Where there is none left, or others wait in the same
// line, the socket waits for its turn. What it returns is the action, ActionNone
// where the socket is to be closed now.
func (a *Agent) afford(w *weighing, s *conn.Snapshot) Action {
	if w.call.turn {
		return ActionNone
	}
	k, l := key{s.Netns, s.Cookie}, line{owner{s.Netns, s.UID}, s.Remote.Addr()}
	q, now := &a.queue, a.Now()
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case a.ctx.Err() != nil:
		return ActionFailed // the agent is stopping, and whoever waited has been let go of
	case q.in[k]:
		return ActionDeferred
	case len(q.lines[l]) == 0 && q.budget.take(now, l.peer, a.closeLimits()) == 0:
		w.taken = now
		return ActionNone
	case len(q.in) >= maxDeferred || q.owners[l.owner] >= maxDeferred/4:
		if q.refused++; !q.full {
			q.full = true
			a.Log.Error("too many closes wait for the budget, more are not made: dead paths are left to the kernel's bound, other connections asked about again", "waiting", len(q.in))
		}
		return ActionFailed
	}
	if !q.runs {
		if !a.start(a.dispatch) {
			return ActionFailed // the agent is stopping
		}
		q.runs = true
	}
	a.stay(w.j)
	q.add(k, &deferral{j: w.j, call: *w.call, line: l})
	return ActionDeferred
}

// add takes a deferral in, at the end of its line. The caller holds mu.
func (q *queue) add(k key, d *deferral) {
	if q.in == nil {
		q.in, q.owners, q.lines = make(map[key]bool), make(map[owner]int), make(map[line][]*deferral)
	}
	q.in[k] = true
	q.owners[d.line.owner]++
	q.stand(d)
}

// stand puts a deferral that is in at the end of its line. The caller holds mu.
func (q *queue) stand(d *deferral) {
	if len(q.lines[d.line]) == 0 {
		q.order = append(q.order, d.line)
	}
	q.lines[d.line] = append(q.lines[d.line], d)
}

// waits reports whether the socket waits for its turn, or has it.
func (q *queue) waits(s *conn.Snapshot) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.in[key{s.Netns, s.Cookie}]
}

// next returns whose turn it is, for whom a close was taken out of the budget, or how long
// it is nobody's. Nobody waits at all: both are zero, and dispatch ends.
func (q *queue) next(now time.Duration, l policy.Limits) (d *deferral, wait time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, one := range q.order {
		due := q.budget.take(now, one.peer, l)
		if due > 0 {
			if wait == 0 || due < wait {
				wait = due
			}
			continue
		}
		waiting := q.lines[one]
		d, waiting = waiting[0], waiting[1:]
		d.taken = now
		q.order = append(q.order[:i:i], q.order[i+1:]...)
		if len(waiting) > 0 {
			q.lines[one] = waiting
			q.order = append(q.order, one)
		} else {
			delete(q.lines, one)
		}
		return d, 0
	}
	if q.runs = len(q.order) > 0; !q.runs {
		q.full = false
	}
	return nil, wait
}

// leave forgets a deferral that was dealt with. A close that was not made goes back
// into the budget.
func (q *queue) leave(d *deferral, spent bool, now time.Duration, l policy.Limits) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.in, key{d.j.before.Netns, d.j.before.Cookie})
	if q.owners[d.line.owner]--; q.owners[d.line.owner] == 0 {
		delete(q.owners, d.line.owner)
	}
	if !spent {
		q.budget.back(d.taken, now, d.line.peer, l)
	}
}

// unspent puts back what afford has taken, since there is nothing to close any more.
// What was taken for a turn, leave puts back.
func (a *Agent) unspent(w *weighing, s *conn.Snapshot) {
	if w.call.turn {
		return
	}
	a.queue.mu.Lock()
	defer a.queue.mu.Unlock()
	a.queue.budget.back(w.taken, a.Now(), s.Remote.Addr(), a.closeLimits())
}

// dispatch gives turns as the budget has closes, until nobody waits.
func (a *Agent) dispatch() {
	for {
		d, wait := a.queue.next(a.Now(), a.closeLimits())
		switch {
		case d != nil:
			if !a.start(func() { a.turn(d) }) {
				a.leave(d.j)
			}
		case wait == 0:
			return
		default:
			a.pause(max(wait, beat) + rand.N(beat/2))
		}
		if a.ctx.Err() != nil {
			a.abandon()
			return
		}
	}
}

// abandon lets go of all who wait: the agent stops.
func (a *Agent) abandon() {
	a.queue.mu.Lock()
	defer a.queue.mu.Unlock()
	for _, waiting := range a.queue.lines {
		for _, d := range waiting {
			a.leave(d.j)
		}
	}
	a.queue.lines, a.queue.order = nil, nil
}
