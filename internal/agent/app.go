// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"

	"github.com/sockhealth/sockhealth/internal/prober"
	"github.com/sockhealth/sockhealth/internal/sockets"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

// askApp puts the application's answer, and a fresh look, into the input. It
// returns an error where the agent stopped first.
func (a *Agent) askApp(w *weighing) error {
	p := w.peer.AppProbeOf(w.j.before.Record.Direction)
	if p == nil {
		return nil
	}
	switch a.Apps.Ask(a.ctx, w.j.ns, w.j.before.Remote, p) {
	case prober.AppAnswered:
		w.in.App = verdict.AppAnswered
	case prober.AppSilent:
		w.in.App = verdict.AppSilent
	default:
		w.in.App = verdict.AppNoConnection
	}
	if err := a.ctx.Err(); err != nil {
		return err
	}
	// That took its time; the answer to the call may have come meanwhile.
	s, err := a.again(w.j.ns, w.j.before.ID)
	switch {
	case errors.Is(err, sockets.ErrGone):
		w.in.After = verdict.Look{Ended: a.awaitEnd(w.j)}
	case err != nil:
		a.Log.Warn("look at a socket under judgement", "socket", w.j.before.ID.String(), "err", err)
	default:
		w.in.After = verdict.Look{Found: true, Snapshot: s}
	}
	return nil
}
