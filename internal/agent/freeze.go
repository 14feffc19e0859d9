// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

const (
	// recently is how long before a judgement a peer must have been heard to count.
	recently = time.Minute
	// askLimit is how long answers are waited for; a window is shorter as a rule. Who
	// waits longer, for a question of the kernel's own (confirmLimit), counts as silent.
	askLimit = 10 * time.Second
	// thawPause is the time between two surveys while closing is frozen, at least.
	thawPause = time.Second
	// rest is how many times the CPU of its walks no other survey walks, and
	// frozenRest that while closing is frozen: then questions walk each time, too.
	rest, frozenRest = 19, 99
)

// Freeze says why nothing is closed by judgement; "" where that is not so.
type Freeze string

// The reasons.
const (
	// FreezeSilent: most peers fell silent at once.
	FreezeSilent Freeze = "peers_silent"
	// FreezeUnseen: not every connection could be looked at, and too few peers were
	// seen to speak for this node.
	FreezeUnseen Freeze = "not_all_seen"
	// FreezeStopping: the agent stopped before anybody knew.
	FreezeStopping Freeze = "stopping"
)

// Freezes lists them.
func Freezes() []Freeze { return []Freeze{FreezeSilent, FreezeUnseen, FreezeStopping} }

// String says it to people, "" where closing is not frozen.
func (f Freeze) String() string {
	return map[Freeze]string{
		FreezeSilent:   "most peers fell silent at once, so it is this node",
		FreezeUnseen:   "not every connection could be looked at, and those that were do not show that this node is well",
		FreezeStopping: "the agent stops",
	}[f]
}

// Namespaces are those that the agent covers; the caller closes the handles.
type Namespaces interface {
	All() []*netns.NS
}

// outlook is what is known about this node's own way to its peers. Nothing is kept
// of a peer: a survey asks the kernel, when a connection is about to be closed. The
// zero value is ready.
type outlook struct {
	mu        sync.Mutex
	connected time.Duration // as of when the node is known to reach its peers
	frozen    time.Time     // since when closing is, for people; zero: it is not
	why       Freeze        // it is
	under     chan struct{} // closes when the survey under way ends; nil: none is
	rested    time.Duration // when the next may walk
}

// state returns why closing is frozen, and as of when the node is known to be well.
func (o *outlook) state() (why Freeze, connected time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.why, o.connected
}

// frozen returns why nothing is to be closed by this judgement, "" where it may be.
// Where silence condemns it waits until it is known whether others spoke meanwhile.
func (a *Agent) frozen(w *weighing, v verdict.Verdict) Freeze {
	since := w.j.asked
	for a.ctx.Err() == nil {
		why, connected := a.outlook.state()
		if why != "" || v.Word != verdict.DeadPath || w.peer.Observe || connected >= since {
			return why
		}
		select {
		case <-a.lookAround(w.j):
		case <-a.ctx.Done():
		}
	}
	return FreezeStopping
}

// lookAround makes a survey unless one is under way, or it is known that the node
// was well when the peer was asked in vain, or is not. It returns what closes when the
// survey has ended.
func (a *Agent) lookAround(j *judgement) <-chan struct{} {
	o, since := &a.outlook, j.asked
	o.mu.Lock()
	defer o.mu.Unlock()
	done := make(chan struct{})
	switch {
	case o.under != nil:
		return o.under
	case !o.frozen.IsZero() || o.connected >= since:
		close(done)
		return done
	}
	own, err := a.handles.hold(j.ns)
	if err != nil || !a.start(func() { a.consider(own, since, j.before.Taken-recently, done) }) {
		if err != nil {
			a.Log.Warn("look whether other peers are heard", "err", err)
			o.connected = since // nothing is known against the node
		} else {
			a.handles.drop(own)
		}
		close(done)
		return done
	}
	o.under = done
	return done
}

// consider makes a survey, and freezes closing where it is this node that is silent.
func (a *Agent) consider(near *netns.NS, since, recent time.Duration, done chan struct{}) {
	defer close(done)
	o := &a.outlook
	o.mu.Lock()
	rested := o.rested
	o.mu.Unlock()
	a.pause(max(0, rested-a.Now(), since-a.Now())) // the answer may be due only soon
	found := a.survey(near, since, recent, "")
	o.mu.Lock()
	defer o.mu.Unlock()
	o.under, o.rested = nil, a.Now()+rest*found.walked
	o.connected = max(o.connected, found.connected)
	if found.connected >= since || !a.start(func() { a.thaw(near, recent) }) {
		a.handles.drop(near)
		return
	}
	o.frozen, o.why = time.Now(), found.why()
	a.Log.Error("closing is frozen: "+o.why.String()+"; the kernel's bounds go on", "frozen", string(o.why),
		"peers", found.peers, "heard", found.heard)
}

// freezes keeps why closing is still frozen. That most peers are silent holds until
// they are heard, however little could be seen since.
func (o *outlook) freezes(why Freeze) Freeze {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.why == FreezeUnseen {
		o.why = why
	}
	return o.why
}

// thaw ends the freeze as soon as enough of the peers are heard again that there
// are connections to, those that came meanwhile included. recent is as in the survey
// that began it.
func (a *Agent) thaw(near *netns.NS, recent time.Duration) {
	defer a.handles.drop(near)
	pause, why := thawPause, a.outlook.freezes(FreezeUnseen)
	for since := a.Now(); ; {
		a.pause(pause)
		if a.ctx.Err() != nil {
			return
		}
		began := a.Now()
		found := a.survey(near, since, recent, why)
		if found.connected >= since && a.ctx.Err() == nil {
			o := &a.outlook
			o.mu.Lock()
			defer o.mu.Unlock()
			a.Log.Warn("closing goes on: "+found.well(), "peers", found.peers, "heard", found.heard,
				"frozen_ms", time.Since(o.frozen).Milliseconds())
			o.frozen, o.why, o.connected = time.Time{}, "", found.connected
			return
		}
		why = a.outlook.freezes(found.why())
		since, pause = began, max(thawPause, frozenRest*found.walked)
	}
}

// surveyed is what a survey has found: as of when the node is known to be well, of
// how many peers, and how many of them were heard since the moment asked for.
type surveyed struct {
	connected    time.Duration
	peers, heard int
	partial      bool          // not all connections could be looked at
	walked       time.Duration // the CPU that took
}

// why says what keeps closing frozen, where it does.
func (s *surveyed) why() Freeze {
	if s.partial && s.peers < verdict.LeastPeers {
		return FreezeUnseen
	}
	return FreezeSilent
}

// well says what speaks for this node.
func (s *surveyed) well() string {
	if s.heard > 0 {
		return "peers are heard again"
	}
	return "no silent peers are left that say it is this node"
}

// survey finds out whether this node reaches its peers: it walks once over the
// connections of all namespaces, and asks those peers of which the kernel has heard
// nothing since that moment, until there are enough. Peers that were not heard since
// recent are left out, which is recently before a judgement. Where too few peers are
// there to tell, or the kernel cannot walk, the node is well; but not where there may be
// more than could be looked at. frozen is why closing is: where most peers were silent,
// all count, and of them one that is left will do to say that it is still so; where
// nobody knows, it is as at first.
func (a *Agent) survey(near *netns.NS, since, recent time.Duration, frozen Freeze) surveyed {
	least, strict := verdict.LeastPeers, frozen == FreezeSilent
	if strict {
		recent, least = 0, 1
	}
	spaces := []*netns.NS{near}
	if a.Namespaces != nil {
		spaces = a.Namespaces.All()
		defer func() {
			for _, ns := range spaces {
				ns.Close()
			}
		}()
	}
	began := a.Now()
	v := newVoices(maphash.MakeSeed(), a.Kernel.InForce(), recent)
	var found surveyed
	var lost time.Duration // on walks that did not come to their end
	for _, ns := range spaces {
		if !a.covers(ns) {
			continue
		}
		if a.ctx.Err() != nil {
			found.partial, least = true, 1
			break
		}
		err := errHeldUp
		if turn := a.Now(); lost < walkLimit {
			if err = a.hear(ns, v, &found); errors.Is(err, errHeldUp) || errors.Is(err, errFull) {
				lost += a.Now() - turn
			}
		}
		if err != nil && !errors.Is(err, loader.ErrUnsupported) {
			found.partial, least = true, 1
		}
		if err != nil {
			a.Log.Warn("look whether other peers are heard", "netns", ns.Inode(), "err", err)
		}
	}
	list := v.others()
	connected := func(list []*voice) time.Duration {
		if found.partial && len(list) == 0 {
			return 0
		}
		return verdict.Connected(moments(list), least, began)
	}
	enough := func(list []*voice) bool { return connected(list) >= since }
	if !enough(list) {
		list = a.ask(list, since, strict, enough)
	}
	found.connected, found.peers, found.heard = connected(list), len(list), heardSince(list, since)
	return found
}

// heardSince counts those that were heard.
func heardSince(list []*voice, since time.Duration) (n int) {
	for _, one := range list {
		if one.heard >= since {
			n++
		}
	}
	return n
}

// hear walks over the connections of one namespace.
func (a *Agent) hear(ns *netns.NS, all *voices, found *surveyed) error {
	free, err := a.place(ns.Inode())
	if err != nil {
		return err
	}
	part := newVoices(all.seed, all.force, all.since) // nobody else's until the walk has ended
	var walked time.Duration                          // nor this
	err = a.bounded(ns, free, func(own *netns.NS) error {
		return own.Do(func() error { // on one thread
			began := a.CPU()
			defer func() { walked = a.CPU() - began }()
			return a.Sockets.Scan(own, func(s conn.Snapshot) error {
				part.add(ns, &s)
				return nil
			})
		})
	})
	if err == nil {
		found.walked += walked
		all.merge(part)
	}
	return err
}

// ask asks the peers that were not heard since a moment, each on a connection that
// there is, until enough of them were, or all have had their window. It returns
// those of whom it is known; strict: whoever gave no answer, for whatever reason, was
// not heard.
func (a *Agent) ask(list []*voice, since time.Duration, strict bool, enough func([]*voice) bool) []*voice {
	answers := make(chan answer, len(list))
	asked := 0
	list = slices.DeleteFunc(list, func(one *voice) bool {
		if one.heard >= since {
			return false
		}
		j := a.question(one)
		if j == nil || !a.start(func() { answers <- a.answer(one, j) }) {
			return true
		}
		asked++
		return false
	})
	limit := time.NewTimer(askLimit)
	defer limit.Stop()
	for ; asked > 0 && !enough(list); asked-- {
		select {
		case got := <-answers:
			got.of.heard = max(got.of.heard, got.heard)
			if !got.known && !strict {
				list = slices.DeleteFunc(list, func(one *voice) bool { return one == got.of })
			}
		case <-limit.C:
			return list
		case <-a.ctx.Done():
			return nil
		}
	}
	return list
}

// answer is what asking a peer came to. It was heard then, or never in its window;
// or nothing is known.
type answer struct {
	of    *voice
	heard time.Duration
	known bool
}

// question begins a judgement that closes nothing, nil where there can be none.
func (a *Agent) question(one *voice) *judgement {
	if one.ask.Cookie == 0 {
		return nil
	}
	peer := managed(a.Kernel.InForce(), &one.ask)
	if peer == nil {
		return nil
	}
	j, err := a.join(one.ns, one.ask, peer, noReporter)
	if err != nil {
		return nil // no descriptor is left, or the agent stops
	}
	return j
}

// answer waits for the end of a question.
func (a *Agent) answer(one *voice, j *judgement) answer {
	defer a.leave(j)
	<-j.done
	v := verdict.Decide(verdict.Input{
		Sent: j.before.Taken, Before: verdict.Look{Found: true, Snapshot: j.first}, After: j.after, Probe: j.probe,
	})
	switch {
	case v.Word == verdict.DeadPath, v.Word == verdict.LocalFault, v.Reason == verdict.ReasonBound:
		return answer{of: one, known: true}
	case v.Word == verdict.Unknown, v.Word == verdict.Gone:
		return answer{of: one}
	case j.after.Found:
		s := &j.after.Snapshot
		return answer{one, s.Taken - s.PacketAge, true}
	}
	return answer{one, a.Now(), true} // it has reset the connection
}
