// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/sockets"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

// closeResult is what became of the one attempt to close a condemned socket.
type closeResult struct {
	action Action
	last   verdict.Look // the look right before
	err    error
}

// act closes the socket that the evidence condemned, after one more look. What
// the look shows becomes part of the evidence, and may overturn the verdict.
// However many condemn it, it is closed once.
func (a *Agent) act(j *judgement, in *verdict.Input, r *Result) {
	j.closing.Do(func() { j.closed = a.close(j) })
	in.After = j.closed.last
	r.Action = j.closed.action
	if v := verdict.Decide(*in); !v.Condemns() {
		r.Verdict, r.Reason, r.Action = v.Word, v.Reason, ActionNone
		return
	}
	if j.closed.err != nil {
		a.Log.Error("close a dead connection", "socket", r.ID.String(), "err", j.closed.err)
	}
}

// close takes the last look and destroys exactly that socket if it still shows
// no life.
func (a *Agent) close(j *judgement) closeResult {
	s, err := a.Sockets.Again(j.ns, j.before.ID)
	switch {
	case errors.Is(err, sockets.ErrGone):
		return closeResult{action: ActionNone, last: verdict.Look{}}
	case err != nil:
		return closeResult{action: ActionFailed, last: j.after, err: err}
	}
	out := closeResult{action: ActionClosed, last: verdict.Look{Found: true, Snapshot: s}}
	if verdict.Heard(&j.before, &s) {
		out.action = ActionNone
		return out
	}
	if err := a.destroy(j, s.ID); errors.Is(err, sockets.ErrGone) {
		out.action = ActionNone
		out.last = verdict.Look{}
	} else if err != nil {
		out.action, out.err = ActionFailed, err
	}
	return out
}

// destroy closes the socket and checks that it is gone.
func (a *Agent) destroy(j *judgement, id conn.ID) error {
	if err := a.Sockets.Destroy(j.ns, id); err != nil {
		return err
	}
	if _, err := a.Sockets.Again(j.ns, id); !errors.Is(err, sockets.ErrGone) {
		return errors.Join(errors.New("the kernel acknowledged the close but the socket is still there"), err)
	}
	return nil
}
