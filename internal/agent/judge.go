// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/policy"
	"github.com/sockhealth/sockhealth/internal/sockets"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

// Who asked, for the log.
const (
	reporterCall  = "call"  // an application whose call timed out
	reporterSweep = "sweep" // a sibling was found silent
)

// call is one question about one socket.
type call struct {
	ns       *netns.NS
	sent     time.Duration // when the call was written
	reporter string
	caller   Caller // zero for a sweep
}

// Judge answers a report: the socket it names is judged and, where the evidence
// condemns it, closed. Where the caller holds no such socket the verdict is
// Gone; a socket of another user counts as none. It blocks up to the probe
// window; when ctx ends first the judgement goes on and its verdict is logged.
//
// Errors wrap ErrForbidden, ErrBusy or ErrStopped, or come from the kernel.
func (a *Agent) Judge(ctx context.Context, r Report) ([]Result, error) {
	if !a.covers(r.Caller.NS) {
		return nil, fmt.Errorf("judge report: %w", ErrForbidden)
	}
	c := &call{ns: r.Caller.NS, sent: r.Sent, reporter: reporterCall, caller: r.Caller}
	s, err := a.find(r)
	if err != nil && !errors.Is(err, sockets.ErrGone) {
		return nil, fmt.Errorf("judge report: %w", err)
	}
	if err != nil || s.UID != r.Caller.UID || !r.agrees(&s) {
		return []Result{a.none(c, &r)}, nil
	}
	result, err := a.judge(ctx, c, s)
	if err != nil {
		return nil, fmt.Errorf("judge %s: %w", s.ID, err)
	}
	return []Result{result}, nil
}

// none answers a report about a socket that is not there, in its own words.
func (a *Agent) none(c *call, r *Report) Result {
	id := conn.ID{Netns: c.ns.Inode(), Local: r.Local, Remote: r.Peer, Cookie: r.Cookie}
	w := &weighing{call: c, began: a.Now(), in: verdict.Input{Sent: c.sent}}
	w.in.Before.Snapshot.ID = id
	return a.conclude(w, verdict.Decide(w.in))
}

// find looks for the socket that the report names.
func (a *Agent) find(r Report) (conn.Snapshot, error) {
	if r.Local.IsValid() && r.Peer.IsValid() {
		return a.Sockets.Get(r.Caller.NS, r.Local, r.Peer)
	}
	return a.Sockets.Find(r.Caller.NS, r.Local, r.Cookie)
}

// agrees reports whether everything the report says is true of the socket.
func (r *Report) agrees(s *conn.Snapshot) bool {
	return (!r.Local.IsValid() || r.Local == s.Local) &&
		(!r.Peer.IsValid() || r.Peer == s.Remote) &&
		(r.Cookie == 0 || r.Cookie == s.Cookie)
}

// judge decides about one socket, given a first look at it, and acts. Where the
// look does not suffice it joins or starts the judgement that probes. Many may
// ask about one socket: the evidence is gathered once, and each is answered by
// its own call's age.
func (a *Agent) judge(ctx context.Context, c *call, s conn.Snapshot) (Result, error) {
	began := a.Now()
	peer, unmanaged := a.peer(&s)
	in := verdict.Input{Sent: c.sent, Unmanaged: unmanaged, Before: verdict.Look{Found: true, Snapshot: s}}
	w := &weighing{call: c, began: began, peer: peer, in: in}
	if v := verdict.Decide(in); v.Word != "" {
		return a.conclude(w, v), nil
	}
	j, err := a.join(c.ns, s, peer, c.reporter == reporterCall)
	if err != nil {
		return Result{}, err
	}
	w.j = j
	select {
	case <-j.done:
		return a.weigh(w)
	case <-ctx.Done():
	}
	// Whoever asked has left; the verdict is due all the same.
	if !a.start(func() {
		<-j.done
		a.weigh(w)
	}) {
		a.leave(j)
	}
	return Result{}, ctx.Err()
}

// weighing is one call's share in a judgement.
type weighing struct {
	call  *call
	began time.Duration
	peer  *policy.Peer // nil: none
	in    verdict.Input
	j     *judgement // nil: the first look sufficed
}

// weigh decides on the evidence that a judgement has gathered, and leaves it.
func (a *Agent) weigh(w *weighing) (Result, error) {
	defer a.leave(w.j)
	if a.ctx.Err() != nil {
		return Result{}, ErrStopped // the evidence was not gathered to the end
	}
	w.in.Before.Snapshot, w.in.After, w.in.Probe = w.j.before, w.j.after, w.j.probe
	return a.conclude(w, verdict.Decide(w.in)), nil
}

// conclude acts on a verdict and leaves the record of it.
func (a *Agent) conclude(w *weighing, v verdict.Verdict) Result {
	r := Result{ID: w.in.Before.Snapshot.ID, Verdict: v.Word, Reason: v.Reason, Action: ActionNone}
	if w.peer != nil {
		r.Policy = w.peer.Name
	}
	if v.Condemns() {
		a.act(w.j, &w.in, &r)
	}
	r.Evidence, r.Duration = w.in.Evidence(), a.Now()-w.began
	a.record(w.call, &r)
	return r
}

// peer returns the entry of the policy that is in force on the socket, or why
// none is.
func (a *Agent) peer(s *conn.Snapshot) (*policy.Peer, string) {
	force := a.Kernel.InForce()
	if s.HasRecord {
		if peer := force.Peer(s.Record.Policy); peer != nil {
			return peer, ""
		}
		return nil, verdict.ReasonNoPolicy
	}
	if force != nil {
		for _, d := range []conn.Direction{conn.Outbound, conn.Inbound} {
			if peer, ok := force.Policy.Match(s.Remote, s.Local.Port(), d); ok {
				return peer, verdict.ReasonOlder
			}
		}
	}
	return nil, verdict.ReasonNoPolicy
}
