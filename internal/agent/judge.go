// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/policy"
	"github.com/sockhealth/sockhealth/internal/sockets"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

// Who asked, for the log.
const (
	reporterCall    = "call"    // an application whose call timed out
	reporterSilence = "silence" // a request is out, and nothing comes back
	reporterSweep   = "sweep"   // a sibling was found silent
	reporterLimit   = "limit"   // close_silent_after has passed for a reported call
	reporterAdmin   = "admin"   // an operator asks, and nothing is to be closed
)

// noReporter is a survey: it asks whether a peer is heard, and has no verdict.
const noReporter = ""

// Reporters lists them.
func Reporters() []string {
	return []string{reporterCall, reporterSilence, reporterSweep, reporterLimit, reporterAdmin}
}

// OfCall reports whether who asked does so about a call that was made on the socket.
func OfCall(reporter string) bool { return reporter != reporterSweep && reporter != reporterAdmin }

// call is one question about one socket.
type call struct {
	ns       *netns.NS
	sent     time.Duration // when the call was written
	reporter string
	caller   Caller // zero for a sweep, and for silence
	one      bool   // the caller named this very socket
	turn     bool   // the budget has a close for it
}

// Judge answers a report: the socket it names is judged and, where the evidence
// condemns it, closed. Where the caller holds no such socket the verdict is
// Gone, and a socket that is not the caller's to hear of counts as none. A
// report that names a peer alone gets a result for each of the caller's sockets
// to it, none where there is none. It blocks up to the probe window with what the last
// attempt may wait for before (owedLimit), and after it up to some 13 s more for a question of the kernel's own (see
// probing.confirm), which may begin anew twice (maxWindows); where something answered,
// until it is known who (Sockets.LocalLeg: 5 s while conntrack is held up, and for a
// place), and the time of an application probe; and before a close that of a survey with
// the rest before it (askLimit, a walk over all namespaces, rest). When ctx ends first the judgement goes
// on and its verdict is logged.
//
// Errors wrap ErrForbidden, ErrBusy or ErrStopped, or come from the kernel.
func (a *Agent) Judge(ctx context.Context, r Report) ([]Result, error) {
	if !a.covers(r.Caller.NS) {
		return nil, fmt.Errorf("judge report: %w", ErrForbidden)
	}
	a.seen(r.Caller.NS.Inode())
	c := &call{ns: r.Caller.NS, sent: r.Sent, reporter: reporterCall, caller: r.Caller}
	if !r.Local.IsValid() && r.Cookie == 0 {
		return a.judgePeer(ctx, c, r.Peer)
	}
	found, err := a.find(r)
	if err != nil {
		return nil, fmt.Errorf("judge report: %w", err)
	}
	found = slices.DeleteFunc(found, func(s conn.Snapshot) bool {
		return !r.Caller.sees(&s) || !r.agrees(&s)
	})
	switch len(found) {
	case 0:
		return []Result{a.none(c, &r)}, nil
	case 1:
		c.one = true
		result, err := a.judge(ctx, c, found[0])
		if err != nil {
			return nil, fmt.Errorf("judge %s: %w", found[0].ID, err)
		}
		return []Result{result}, nil
	}
	if len(found) > MaxOwned {
		return nil, fmt.Errorf("judge sockets of %s: %w", r.Local, ErrBusy)
	}
	return a.judgeAll(ctx, c, found), nil
}

// judgePeer judges every socket of the caller to a peer, each alone.
func (a *Agent) judgePeer(ctx context.Context, c *call, peer netip.AddrPort) ([]Result, error) {
	found, err := a.Scan(c.ns, func(s *conn.Snapshot) bool {
		return s.Remote == peer && c.caller.sees(s) && s.State.Judgeable()
	})
	if err == nil && len(found) > MaxOwned {
		err = ErrBusy
	}
	if err != nil {
		return nil, fmt.Errorf("judge sockets to %s: %w", peer, err)
	}
	return a.judgeAll(ctx, c, found), nil
}

// judgeAll judges sockets side by side. One that could not be judged is unknown:
// the others are not held up by it.
func (a *Agent) judgeAll(ctx context.Context, c *call, found []conn.Snapshot) []Result {
	results := make([]Result, len(found))
	var all sync.WaitGroup
	for i, s := range found {
		one := func() {
			var err error
			if results[i], err = a.judge(ctx, c, s); err != nil {
				results[i] = a.unjudged(c, &s, err)
			}
		}
		all.Add(1)
		if !a.start(func() { defer all.Done(); one() }) {
			all.Done()
			results[i] = a.unjudged(c, &s, ErrStopped)
		}
	}
	all.Wait()
	return results
}

// unjudged is the result where a judgement did not come about.
func (a *Agent) unjudged(c *call, s *conn.Snapshot, err error) Result {
	v := verdict.Verdict{Word: verdict.Unknown, Reason: verdict.ReasonFailed}
	if errors.Is(err, ErrBusy) || errors.Is(err, ErrStopped) || ctxErr(err) {
		v.Reason = verdict.ReasonBusy
	} else {
		a.Log.Warn("judge a socket", "socket", s.ID.String(), "err", err)
	}
	w := &weighing{call: c, began: a.Now(), in: verdict.Input{Sent: c.sent, Before: verdict.Look{Found: true, Snapshot: *s}}}
	w.report, w.undecided = w.in.Before, true
	w.under(a, s)
	return a.conclude(w, v)
}

// ctxErr reports whether err is that of a context that ended.
func ctxErr(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// none answers a report about a socket that is not there, in its own words.
func (a *Agent) none(c *call, r *Report) Result {
	id := conn.ID{Netns: c.ns.Inode(), Local: r.Local, Remote: r.Peer, Cookie: r.Cookie}
	w := &weighing{call: c, began: a.Now(), in: verdict.Input{Sent: c.sent}}
	w.in.Before.Snapshot.ID = id
	if force := a.Kernel.InForce(); force != nil {
		w.revision = force.Policy.Revision
	}
	return a.conclude(w, verdict.Decide(w.in))
}

// find looks for the sockets that the report names.
func (a *Agent) find(r Report) ([]conn.Snapshot, error) {
	if !r.Local.IsValid() || !r.Peer.IsValid() {
		return a.Find(r.Caller.NS, r.Local, r.Cookie)
	}
	s, err := a.Sockets.Get(r.Caller.NS, r.Local, r.Peer)
	if errors.Is(err, sockets.ErrGone) {
		return nil, nil
	}
	return []conn.Snapshot{s}, err
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
	// No call is older than its connection, whatever the caller says.
	in := verdict.Input{Sent: max(c.sent, s.Record.Opened), Before: verdict.Look{Found: true, Snapshot: s}}
	w := &weighing{call: c, began: a.Now(), in: in, report: in.Before}
	w.under(a, &s)
	if v := verdict.Decide(w.in); v.Word != "" {
		return a.conclude(w, v), nil
	}
	j, err := a.join(c.ns, s, w.peer, c.reporter)
	if err != nil {
		return Result{}, err
	}
	w.j = j
	// Whoever asked may leave; the verdict is due all the same.
	var result Result
	done := make(chan error, 1)
	if !a.start(func() {
		<-j.done
		var err error
		result, err = a.weigh(w)
		done <- err
	}) {
		a.leave(j)
		return Result{}, ErrStopped
	}
	select {
	case err := <-done:
		return result, err
	case <-ctx.Done():
		return Result{}, ctx.Err()
	}
}

// weighing is one call's share in a judgement.
type weighing struct {
	call     *call
	began    time.Duration
	peer     *policy.Peer // nil: none
	revision string       // of the policy that peer is of
	in       verdict.Input
	report   verdict.Look  // at the report; in.Before may be an earlier one's
	j        *judgement    // nil: the first look sufficed
	taken    time.Duration // when a close was taken out of the budget, for no turn
	failed   error         // why the close was not made, where that is for the log
	frozen   Freeze        // why it was not made, where nothing is closed
	// undecided: the verdict is not Decide's.
	undecided bool
}

// under takes over what the policy in force says about the socket.
func (w *weighing) under(a *Agent, s *conn.Snapshot) {
	force := a.Kernel.InForce()
	w.peer, w.in.Unmanaged = a.peerOf(force, w.call.ns, s)
	if w.revision = ""; force != nil {
		w.revision = force.Policy.Revision
	}
	w.rules()
}

// rules takes over what the policy says about a call that stays unanswered. Who
// swept made no call, and of one that is silent nobody says that it is overdue.
func (w *weighing) rules() {
	w.in.SilentLimit, w.in.CloseHung = 0, false
	if w.peer == nil || w.call.reporter == reporterSweep || w.call.reporter == reporterSilence {
		return
	}
	w.in.SilentLimit = w.peer.CloseSilentAfter
	w.in.CloseHung = w.peer.AppProbe != nil && w.peer.AppProbe.CloseHung
}

// weigh decides on the evidence that a judgement has gathered, and leaves it.
// Where the path answers and the call does not, the application is asked, too.
func (a *Agent) weigh(w *weighing) (Result, error) {
	defer a.leave(w.j)
	if a.ctx.Err() != nil {
		return Result{}, ErrStopped // the evidence was not gathered to the end
	}
	w.in.Before.Snapshot, w.in.After, w.in.Probe = w.j.first, w.j.after, w.j.probe
	if w.call.reporter != reporterSilence && verdict.AsksApp(w.in) && a.askApp(w) != nil {
		return Result{}, ErrStopped
	}
	return a.conclude(w, verdict.Decide(w.in)), nil
}

// conclude acts on a verdict and leaves the record of it.
func (a *Agent) conclude(w *weighing, v verdict.Verdict) Result {
	r := Result{ID: w.in.Before.Snapshot.ID, Cgroup: w.in.Before.Snapshot.Cgroup, Action: ActionNone}
	if v.Close && w.call.reporter != reporterAdmin {
		v, r.Action = a.act(w, v)
	}
	r.Verdict, r.Reason = v.Word, v.Reason
	r.Evidence, r.Duration = w.in.Evidence(), a.Now()-w.began
	w.fill(&r)
	if w.in.Before.Found { // by another call's look, perhaps, which came before this one
		r.Evidence.CallAge = max(0, w.began-w.call.sent)
	}
	a.record(w, &r)
	switch {
	case !v.Close:
		a.later(w)
	case left(v.Word, r.Action):
		a.askAt(w, a.Now()+onceMore)
	}
	return r
}
