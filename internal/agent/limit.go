// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/policy"
)

// A peer owes one answer in policy.MinSpacing, whoever asked: keepalives and window
// probes that the kernel sends by itself count as segments of ours do, what carries
// data does not, nor what it left unanswered (kernel-facts P5). Where answers alone
// are lost, a question that the peer has answered in vain costs the next one its
// answer. That must not be the last attempt: the outage may be over by then, and
// nobody asks again.

const (
	// limitTick is the longest tick of a kernel: the peer measures in its own.
	limitTick = 10 * time.Millisecond
	// apart is the distance of two questions of which the second is owed an answer.
	apart = policy.MinSpacing + limitTick
	// unsteady is how much longer one question may be under way, in this host, on the
	// path or in the peer, than the next, which the peer would refuse an answer then.
	unsteady = 100 * time.Millisecond
	// owedLimit is how long the last attempt waits at most. When it was due the peer's
	// limit was over apart later; the rest is for who asks meanwhile, in vain again. But
	// window probes that a queue of this host has no room for come every 500 ms for as
	// long as it has none, and no peer hears them.
	owedLimit = 2 * apart
)

// seen notes when the kernel was seen to have asked, by itself or because it was provoked.
// Whether what it asked without data cost the peer's answer nobody knows: what was asked
// right before it may have been refused one, or was lost on its way.
func (p *probing) seen(s *conn.Snapshot) {
	if s.ProbesOut > p.last.ProbesOut {
		p.bare = s.Taken
	}
	for range advanced(p.last.ProbesOut, s.ProbesOut) + advanced(p.last.Retransmits, s.Retransmits) {
		p.own = append(p.own, s.Taken)
	}
	if resent(&p.last, s) {
		p.probe.Resent = true
		p.own = append(p.own, s.Taken)
		p.note(ownRetransmission, attemptSent)
	}
}

// spares reports whether no keepalive is to be provoked before the last attempt: it leaves
// when a second has passed since the last packet, and that would be so shortly before the
// last one that this would have to wait for the peer's limit.
func (p *probing) spares() bool {
	leaves := p.last.Taken - p.last.PacketAge + keepaliveAge
	return leaves > p.agent.Now() && leaves+apart > p.lastDue
}

// owed waits until the peer owes an answer to the last attempt.
func (p *probing) owed(ctx context.Context) (found, settled bool) {
	over := p.agent.Now() + owedLimit
	for found = true; found && !settled && !p.absence.found && p.bare > 0; {
		left := min(p.bare+apart, over) - p.agent.Now()
		if left <= 0 {
			break
		}
		found, settled = p.wait(ctx, left)
	}
	return found, settled
}
