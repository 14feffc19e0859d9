// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"time"

	"github.com/sockhealth/sockhealth/internal/api"
	"github.com/sockhealth/sockhealth/internal/policy"
)

// beside is what a judgement has waited for beside its window. It is granted where the
// record of the connection shows the reason, and for as long as that was one.
type beside struct {
	reason
	took time.Duration
}

// reason is why a judgement may come after call timeout and window.
type reason int

const (
	forPass  reason = iota // the next pass of the silence watch
	forTurn                // its turn, since the budget was used up
	forLimit               // the peer, which owed the last attempt no answer before
	forOwn                 // a question of the kernel's own, and its answer
	forApp                 // the application, which was asked
	reasons
)

func (r reason) String() string {
	return [reasons]string{
		"the next pass of the silence watch", "their turn, the budget being used up",
		"the peer, which owed the last attempt no answer before", "a question of the kernel's own, and its answer",
		"the application, which was asked",
	}[r]
}

const (
	// apartAtPeer is the distance of two questions of which the second is owed an answer.
	apartAtPeer = policy.MinSpacing + 10*time.Millisecond
	// ownLimit is how long a question of the kernel's own may be waited for.
	ownLimit = 13 * time.Second
)

// besides takes from the record of a close what was waited for; most is how long what the
// scenario is about may take.
func (p *play) besides(e *api.VerdictEvent, most time.Duration) {
	grant := func(r reason, took, most time.Duration) {
		if took = min(took, most); took > 0 {
			p.out.besides = append(p.out.besides, beside{r, took})
		}
	}
	from, last := e.Basis.Before.TakenNS, time.Duration(e.Basis.After.TakenNS-e.Basis.Before.TakenNS)
	p.out.record, p.out.lasted = e, last
	probe := p.out.probe
	window, spacing := probe.Schedule(0)
	switch before := p.out.at - p.asked - last; {
	case e.Reporter == "silence":
		grant(forPass, before, most)
	case p.out.action == "deferred":
		grant(forTurn, before, most)
	case e.Evidence.AppProbe == "silent":
		answered := last - time.Duration(e.Basis.After.PacketAgeNS)
		grant(forApp, min(answered+most, last)-window, most)
		return
	}
	q, due, owed := questionsOf(e, from), time.Duration(probe.Attempts-1)*spacing, time.Duration(0)
	if q.bare > 0 {
		owed = max(min(q.bare+apartAtPeer, q.last)-due, 0)
		grant(forLimit, owed, owing)
	}
	if !q.confirmed { // from when it was seen, the time that the last attempt has
		grant(forOwn, min(q.own-due, last-window)-min(owed, owing), ownLimit)
	}
}

// questions are moments of a judgement, from its first look on.
type questions struct {
	last      time.Duration // the last attempt
	bare      time.Duration // the kernel's last question by itself before that which the peer's limit counts; 0: none
	own       time.Duration // the kernel's first one; 0: none
	confirmed bool          // one was out already
}

func questionsOf(e *api.VerdictEvent, from int64) (q questions) {
	b := &e.Basis.Before
	q.confirmed = b.ProbesOut > 0 || b.Retransmits > 0
	for _, one := range e.Probes {
		if one.Kind == "segment" { // the last attempt is always made that way, too
			q.last = max(q.last, time.Duration(one.AtMS)*time.Millisecond-time.Duration(from))
		}
	}
	for _, one := range e.Probes {
		at := time.Duration(one.AtMS)*time.Millisecond - time.Duration(from)
		switch one.Kind {
		case "own_keepalive", "own_window_probe":
			if at <= q.last {
				q.bare = max(q.bare, at)
			}
		case "own_retransmission":
		default:
			continue
		}
		if q.own == 0 {
			q.own = at
		}
	}
	return q
}
