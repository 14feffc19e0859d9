// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"math/rand/v2"
	"time"

	"github.com/sockhealth/sockhealth/internal/sockets"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

// turnFailures is how many turns may fail for want of the kernel's answer before a
// deferred socket is forgotten.
const turnFailures = 3

// turn judges a deferred socket anew, and closes it where that condemns it, too. Where
// that did not come about it waits for another turn.
func (a *Agent) turn(d *deferral) {
	action, err := a.anew(d)
	spent := action == ActionClosed || action == ActionFailed
	if wait, another := d.another(err); another {
		a.giveBack(d)
		if a.pause(wait); a.rejoin(d) {
			return
		}
		spent = true // there is nothing left to give back
	}
	a.queue.leave(d, spent, a.Now(), a.closeLimits())
	a.leave(d.j)
}

// another says how long to wait for another turn after one that came to nothing.
func (d *deferral) another(err error) (wait time.Duration, ok bool) {
	switch {
	case err == nil:
		return 0, false
	case errors.Is(err, ErrBusy):
		return beat + rand.N(beat/2), true
	}
	d.failures++
	return onceMore, d.failures < turnFailures
}

// giveBack puts back what was taken out of the budget for a turn.
func (a *Agent) giveBack(d *deferral) {
	a.queue.mu.Lock()
	defer a.queue.mu.Unlock()
	a.queue.budget.back(d.taken, a.Now(), d.line.peer, a.closeLimits())
}

// rejoin puts a deferral back into its line; false: the agent is stopping.
func (a *Agent) rejoin(d *deferral) bool {
	q := &a.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if a.ctx.Err() != nil || !q.runs && !a.start(a.dispatch) {
		return false
	}
	q.runs = true
	q.stand(d)
	return true
}

// anew is the second judgement of a deferred socket. Its record is like any other's. With
// an error it did not come about; there is no record of one for which the agent was too busy.
func (a *Agent) anew(d *deferral) (Action, error) {
	c := d.call
	c.ns, c.turn = d.j.ns, true
	s, err := a.again(c.ns, d.j.before.ID)
	if errors.Is(err, sockets.ErrGone) {
		w := &weighing{call: &c, began: a.Now(), j: d.j}
		w.in = verdict.Input{
			Sent:   max(c.sent, d.j.before.Record.Opened),
			Before: verdict.Look{Found: true, Snapshot: d.j.before}, Probe: d.j.probe,
		}
		w.report = w.in.Before
		w.under(a, &d.j.before)
		return a.conclude(w, a.gone(w)).Action, nil
	}
	if err != nil {
		return a.unjudged(&c, &d.j.before, err).Action, err
	}
	r, err := a.judge(a.ctx, &c, s)
	if err != nil && !errors.Is(err, ErrBusy) && a.ctx.Err() == nil {
		r = a.unjudged(&c, &s, err)
	}
	return r.Action, err
}
