// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"time"

	"github.com/sockhealth/sockhealth/internal/sockets"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

// later asks about a call once more when its silent limit has passed
// (close_silent_after): whoever reported a timeout need not report again.
// One such question waits per socket, that of the oldest call.
func (a *Agent) later(w *weighing) {
	if w.peer == nil || w.peer.CloseSilentAfter == 0 || w.call.reporter != reporterCall {
		return
	}
	switch verdict.Decide(w.in).Word {
	case verdict.AliveSlow, verdict.AliveHung:
	default:
		return // answered, or beyond asking
	}
	s := &w.in.Before.Snapshot
	k := key{s.Netns, s.Cookie}
	wait := w.call.sent + w.peer.CloseSilentAfter - a.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stopped || a.limits[k] || len(a.limits) >= MaxJudgements {
		return
	}
	ns, err := a.handles.hold(w.j.ns)
	if err != nil {
		a.Log.Warn("wait for the silent limit", "socket", s.ID.String(), "err", err)
		return
	}
	a.limits[k] = true
	a.work.Go(func() {
		defer a.handles.drop(ns)
		a.pause(wait)
		a.mu.Lock()
		delete(a.limits, k)
		a.mu.Unlock()
		if a.ctx.Err() != nil {
			return
		}
		fresh, err := a.lookOnce(ns, s.ID)
		if err == nil {
			c := &call{ns: ns, sent: w.call.sent, reporter: reporterLimit, caller: w.call.caller}
			_, err = a.judge(a.ctx, c, fresh)
		}
		if err != nil && !errors.Is(err, sockets.ErrGone) && a.ctx.Err() == nil {
			a.Log.Warn("judge at the silent limit", "socket", s.ID.String(), "err", err)
		}
	})
}

// pause waits, or returns early when the agent stops.
func (a *Agent) pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-a.ctx.Done():
	case <-timer.C:
	}
}
