// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/policy"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

// judgement gathers the evidence about one socket, once, for everybody who
// asks meanwhile. before, peer and ns never change; first, after, probe, attempts and
// asked are settled when done closes.
type judgement struct {
	refs   int // who still needs ns, held by Agent.mu
	ns     *netns.NS
	before conn.Snapshot
	peer   *policy.Peer
	acts   bool // whether somebody who acts on it has joined; held by Agent.mu
	sweeps bool // whether silence spreads the question to the siblings; held by Agent.mu

	done     chan struct{}
	first    conn.Snapshot // the look that the last window began with
	after    verdict.Look
	probe    verdict.Probe
	attempts attempts
	// asked is when the answer was due to the second attempt, or the only one, or the one
	// that alone condemns: where other peers were heard since, it is not this node that
	// kept it from coming.
	asked time.Duration

	endMu sync.Mutex
	end   verdict.End // as the kernel's event tells

	closing sync.Mutex // one at a time looks once more and closes
	closed  bool       // held by closing
	counted Action     // what was counted last; held by closing
}

// join returns the judgement under way about the socket, or starts one. The
// caller leaves it when it has acted.
func (a *Agent) join(ns *netns.NS, s conn.Snapshot, peer *policy.Peer, reporter string) (*judgement, error) {
	k := key{s.Netns, s.Cookie}
	acts := reporter != reporterAdmin && reporter != noReporter
	sweeps := reporter == reporterCall || reporter == reporterSilence
	a.mu.Lock()
	defer a.mu.Unlock()
	if j := a.judgements[k]; j != nil {
		j.refs++
		j.acts, j.sweeps = j.acts || acts, j.sweeps || sweeps
		return j, nil
	}
	if a.stopped {
		return nil, ErrStopped
	}
	who := owner{s.Netns, s.UID}
	// A survey asks maxVoices at most, and must be able to when all are taken: then most.
	if reporter != noReporter && (len(a.judgements) >= MaxJudgements || a.owners[who] >= MaxOwned) {
		return nil, ErrBusy
	}
	own, err := a.handles.hold(ns) // the judgement may outlive whoever asked
	if err != nil {
		return nil, err
	}
	j := &judgement{refs: 2, ns: own, before: s, peer: peer, acts: acts, sweeps: sweeps, done: make(chan struct{})}
	a.judgements[k], a.ends[k] = j, append(a.ends[k], j)
	a.owners[who]++
	a.work.Go(func() { a.gather(k, j) })
	return j, nil
}

// stay says that somebody needs the judgement who is not the one that joined it: the caller,
// who needs it still.
func (a *Agent) stay(j *judgement) {
	a.mu.Lock()
	defer a.mu.Unlock()
	j.refs++
}

// leave says that the caller needs the judgement no more.
func (a *Agent) leave(j *judgement) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if j.refs--; j.refs > 0 {
		return
	}
	a.handles.drop(j.ns)
	k := key{j.before.Netns, j.before.Cookie}
	rest := slices.DeleteFunc(a.ends[k], func(other *judgement) bool { return other == j })
	if a.ends[k] = rest; len(rest) == 0 {
		delete(a.ends, k)
	}
}

// underWay reports whether the socket is being judged by somebody who acts on it:
// what a survey or an operator asks is for others to join.
func (a *Agent) underWay(s *conn.Snapshot) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	j := a.judgements[key{s.Netns, s.Cookie}]
	return j != nil && j.acts
}

// gather probes until the socket shows life, is gone, or the window has passed.
func (a *Agent) gather(k key, j *judgement) {
	defer a.leave(j)
	p := &probing{agent: a, j: j, last: j.before}
	j.after, j.probe = p.run(a.ctx)
	j.attempts = p.attempts
	if p.provoked {
		a.calm(j)
	}
	if !j.after.Found {
		j.after.Ended = a.awaitEnd(j)
	}
	a.mu.Lock()
	delete(a.judgements, k)
	who := owner{j.before.Netns, j.before.UID}
	if a.owners[who]--; a.owners[who] == 0 {
		delete(a.owners, who)
	}
	a.mu.Unlock()
	close(j.done)
}

// errMissed says that a walk over the sockets came to its end without one of them.
var errMissed = errors.New("the walk missed it")

// calm puts back what provoking changed, and checks it: a walk of an older
// kernel may miss a socket. One that is gone needs nothing, and neither does one that its
// application has closed meanwhile: the programs leave it alone.
func (a *Agent) calm(j *judgement) {
	var err error
	for range 3 {
		var reached bool
		if reached, err = a.calls.calm(j.ns, j.before.Cookie); errors.Is(err, errHeldUp) {
			return // it comes later
		}
		s, lookErr := a.lookOnce(j.ns, j.before.ID)
		if lookErr != nil || s.Orphan || s.Options.Idle == s.Record.Effective.Idle {
			return
		}
		if err == nil && !reached {
			err = errMissed
		}
	}
	if err == nil {
		return // somebody else has set it since
	}
	a.Log.Warn("restore keepalive of a probed socket", "socket", j.before.ID.String(), "err", err)
}

// ended returns how the socket ended, as far as an event has told.
func (j *judgement) ended() verdict.End {
	j.endMu.Lock()
	defer j.endMu.Unlock()
	return j.end
}

// endGrace is how long the kernel's close event may lag behind the look that
// finds the socket gone.
const endGrace = 100 * time.Millisecond

// awaitEnd returns how the socket ended, as soon as the event has come.
func (a *Agent) awaitEnd(j *judgement) verdict.End {
	deadline := time.NewTimer(endGrace)
	defer deadline.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		if end := j.ended(); end != verdict.EndUnknown {
			return end
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			return j.ended()
		case <-a.ctx.Done():
			return verdict.EndUnknown
		}
	}
}
