// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/sockets"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

const (
	// maxLimited bounds the sockets of one user in one namespace that wait for
	// a silent limit.
	maxLimited = 1000
	// waitSlice is the longest time between two looks at a socket that waits.
	waitSlice = time.Minute
	// onceMore is the time after which a call is asked about again whose connection
	// was condemned and could not be closed.
	onceMore = 30 * time.Second
)

// later asks about a call once more when its silent limit has passed
// (close_silent_after): whoever reported a timeout of one socket need not report
// again. One wait runs per socket; a younger call reported meanwhile is asked
// about after the older one.
func (a *Agent) later(w *weighing) {
	if w.in.SilentLimit == 0 || w.call.reporter != reporterCall || !w.call.one || w.j == nil {
		return
	}
	in := w.in
	in.Probe.LegUnknown, in.Probe.Astray = false, false // it may be known by then
	switch verdict.Decide(in).Word {
	case verdict.AliveSlow, verdict.AliveHung:
	default:
		return // answered, or beyond asking
	}
	a.askAt(w, w.in.Sent+w.in.SilentLimit)
}

// left reports whether a connection stands that was condemned although its path
// answers. No bound of the kernel's ends it: somebody has to ask again.
func left(word verdict.Word, action Action) bool {
	return (action == ActionFrozen || action == ActionFailed) && (word == verdict.AliveSlow || word == verdict.AliveHung)
}

// open reports whether something answered and it is not known whether that was the peer, by
// the connection's own way: it may be another time.
func open(r *Result) bool {
	switch r.Reason {
	case verdict.ReasonLegUnknown:
		return true
	case verdict.ReasonMultipath, verdict.ReasonUnconfirmed:
		return r.Evidence.ProbeAnswered
	}
	return false
}

// askAt asks about the call again at a moment.
func (a *Agent) askAt(w *weighing, at time.Duration) {
	s := &w.in.Before.Snapshot
	k, who := key{s.Netns, s.Cookie}, owner{s.Netns, s.UID}
	a.mu.Lock()
	defer a.mu.Unlock()
	if newest, waits := a.limits[k]; waits {
		a.limits[k] = max(newest, w.in.Sent)
		return
	}
	if a.stopped || a.limited[who] >= maxLimited {
		return
	}
	ns, err := a.handles.hold(w.j.ns)
	if err != nil {
		a.Log.Warn("wait for the silent limit", "socket", s.ID.String(), "err", err)
		return
	}
	a.limits[k] = w.in.Sent
	a.limited[who]++
	id, wait, caller, sent := s.ID, at-w.in.Sent, w.call.caller, w.in.Sent
	a.work.Go(func() {
		defer a.handles.drop(ns)
		defer a.unlimit(k, who)
		for ok := true; ok; sent, ok = a.younger(k, sent) {
			if !a.atLimit(ns, id, &call{ns: ns, sent: sent, reporter: reporterLimit, caller: caller}, sent+wait) {
				return
			}
		}
	})
}

// younger returns the newest call that was reported after the one at sent.
func (a *Agent) younger(k key, sent time.Duration) (time.Duration, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	newest := a.limits[k]
	return newest, newest > sent
}

func (a *Agent) unlimit(k key, who owner) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.limits, k)
	if a.limited[who]--; a.limited[who] == 0 {
		delete(a.limited, who)
	}
}

// atLimit judges the call at a moment. It returns false where the socket ends
// before, or with that: there is nothing more to wait for.
func (a *Agent) atLimit(ns *netns.NS, id conn.ID, c *call, at time.Duration) bool {
	for {
		wait := at - a.Now()
		a.pause(max(0, min(wait, waitSlice)))
		if a.ctx.Err() != nil {
			return false
		}
		s, err := a.lookOnce(ns, id)
		switch {
		case errors.Is(err, sockets.ErrGone):
			return false
		case err != nil:
			a.Log.Warn("judge at the silent limit", "socket", id.String(), "err", err)
			return false
		case wait > waitSlice:
			continue
		}
		r, err := a.judge(a.ctx, c, s)
		if errors.Is(err, ErrBusy) {
			at = a.Now() + onceMore
			continue
		}
		if err != nil {
			if a.ctx.Err() == nil {
				a.Log.Warn("judge at the silent limit", "socket", id.String(), "err", err)
			}
			return false
		}
		if !left(r.Verdict, r.Action) && !open(&r) {
			return r.Action != ActionClosed
		}
		at = a.Now() + onceMore
	}
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
