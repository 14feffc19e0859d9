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

// limitTick is the longest tick of a kernel: the peer measures in its own.
const limitTick = 10 * time.Millisecond

// seen notes when the kernel was seen to have asked without data. What comes sooner
// after an attempt than the peer's limit takes no answer from the next one.
func (p *probing) seen(s *conn.Snapshot) {
	if s.ProbesOut > p.last.ProbesOut && s.Taken > p.tried+policy.MinSpacing-limitTick {
		p.bare = s.Taken
	}
}

// owed waits until the peer owes an answer to the last attempt.
func (p *probing) owed(ctx context.Context) (found, settled bool) {
	const apart = policy.MinSpacing + limitTick
	found = true
	for found && !settled && !p.absence.found && p.bare > 0 && p.agent.Now() < p.bare+apart {
		found, settled = p.wait(ctx, p.bare+apart-p.agent.Now())
	}
	return found, settled
}
