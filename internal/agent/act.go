// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/sockets"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

// act does what a verdict that condemns calls for, after one more look. What
// the look shows becomes part of the evidence and may overturn the verdict.
// However many condemn one socket, it is closed once.
func (a *Agent) act(w *weighing, v verdict.Verdict) (verdict.Verdict, Action) {
	j := w.j
	j.closing.Lock()
	defer j.closing.Unlock()
	if j.closed {
		return v, ActionClosed // by another call's verdict on the same evidence
	}
	for {
		observed := w.peer.Observe
		frozen := a.frozen(w, v) // before the last look, since that may take its time
		s, err := a.again(j.ns, j.before.ID)
		switch {
		case errors.Is(err, sockets.ErrGone):
			return a.gone(w), ActionNone
		case err != nil:
			w.failed = fmt.Errorf("look once more before a close: %w", err)
			return v, a.closes(w, v, ActionFailed)
		}
		w.in.After = verdict.Look{Found: true, Snapshot: s}
		// The policy may have changed since the report.
		w.under(a, &s)
		if v = verdict.Decide(w.in); !v.Close {
			return v, ActionNone
		}
		if w.peer.Observe {
			a.watch(j.ns, &s, w.peer.Name)
			return v, a.closes(w, v, ActionObserved)
		}
		if frozen != "" {
			w.frozen = frozen
			return v, a.closes(w, v, ActionFrozen)
		}
		if !observed { // otherwise nobody has found out yet whether it is this node
			return a.end(w, v, &s)
		}
	}
}

// end closes a condemned socket as the budget allows.
func (a *Agent) end(w *weighing, v verdict.Verdict, s *conn.Snapshot) (verdict.Verdict, Action) {
	if action := a.afford(w, s); action != ActionNone {
		return v, a.closes(w, v, action)
	}
	err := a.destroy(w.j, s.ID)
	switch {
	case errors.Is(err, sockets.ErrGone):
		a.unspent(w, s)
		return a.gone(w), ActionNone
	case err != nil:
		w.failed = fmt.Errorf("close a condemned connection: %w", err)
		return v, a.closes(w, v, ActionFailed)
	}
	w.j.closed = true
	return v, a.closes(w, v, ActionClosed)
}

// closes counts what is done about a condemned socket, once however many reports
// condemned it.
func (a *Agent) closes(w *weighing, v verdict.Verdict, action Action) Action {
	if w.j.counted == action || w.peer == nil {
		return action
	}
	w.j.counted = action
	a.stats.condemned(w.peer.Name, cause(v), action)
	return action
}

// gone decides where the socket has ended meanwhile.
func (a *Agent) gone(w *weighing) verdict.Verdict {
	w.in.After = verdict.Look{Ended: a.awaitEnd(w.j)}
	return verdict.Decide(w.in)
}

// errYetToCome says that inet_diag may be waiting to close, and cannot be talked out of it:
// an application has locked the socket since the last look. The end of the connection
// tells of it (destroyed).
var errYetToCome = errors.New("it may still come, without another look, once its application lets go of the socket")

// destroy closes the socket and checks that it is gone.
func (a *Agent) destroy(j *judgement, id conn.ID) error {
	err := a.bounded(j.ns, func() {}, func(ns *netns.NS) error { return a.Sockets.Destroy(ns, id) })
	if errors.Is(err, errHeldUp) {
		return fmt.Errorf("%w: %w", err, errYetToCome)
	}
	if err != nil {
		return err
	}
	if _, err := a.lookOnce(j.ns, id); !errors.Is(err, sockets.ErrGone) {
		return errors.Join(errors.New("the kernel acknowledged the close but the socket is still there"), err)
	}
	return nil
}
