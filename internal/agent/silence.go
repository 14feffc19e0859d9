// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"time"

	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/sockets"
)

// JudgeSilent judges a connection of ns that the silence watch suspects, as a
// report of a timeout would, with the request as the call. It returns at once; the
// caller keeps ns. What somebody who acts judges already, or was heard meanwhile,
// needs no judgement; namespaces that the agent does not act in are left alone. again,
// which may be nil, hears of one that could not be judged since ErrBusy.
//
// Nobody has given the call up: only a path that is dead costs the connection. The
// application is not asked, and close_silent_after has no part in it.
func (a *Agent) JudgeSilent(ns *netns.NS, s loader.Suspect, again func(loader.Suspect)) {
	if !a.covers(ns) {
		return
	}
	sent := a.Now() - s.Request
	own, err := a.handles.hold(ns)
	if err != nil {
		a.Log.Warn("judge a silent connection", "socket", s.ID.String(), "err", err)
		return
	}
	if !a.start(func() {
		defer a.handles.drop(own)
		a.judgeSilent(own, s, sent, again)
	}) {
		a.handles.drop(own)
	}
}

// judgeSilent looks again, without the watch's haste, and judges.
func (a *Agent) judgeSilent(ns *netns.NS, s loader.Suspect, sent time.Duration, again func(loader.Suspect)) {
	snap, err := a.again(ns, s.ID)
	switch {
	case errors.Is(err, sockets.ErrGone):
		return
	case err != nil:
		a.Log.Warn("judge a silent connection", "socket", s.ID.String(), "err", err)
		return
	case snap.PacketAge < s.Heard || a.underWay(&snap):
		return
	}
	c := &call{ns: ns, sent: sent, reporter: reporterSilence}
	if peer := managed(a.Kernel.InForce(), &snap); peer != nil {
		a.stats.suspected(peer.Name)
	}
	if _, err := a.judge(a.ctx, c, snap); err != nil && a.ctx.Err() == nil {
		a.unjudged(c, &snap, err)
		if errors.Is(err, ErrBusy) && again != nil {
			again(s)
		}
	}
}
