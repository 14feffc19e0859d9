// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/policy"
)

const (
	// confirmLimit is how far off the kernel's own question may be that is waited for.
	confirmLimit = 10 * time.Second
	// latest is how late a timer may be that is waited for, and timerLate what part of the
	// time that it was set for.
	latest, timerLate = 2 * time.Second, 8
	// keepaliveGrace is how long a question that is due may take to show.
	keepaliveGrace = 500 * time.Millisecond
)

// confirm waits until what condemns has had the time of an attempt to be answered:
// segments of ours alone condemn nothing, and a question of the kernel's own may have left
// a moment before the window's end, or be due only after it. A window probe or a
// retransmission comes with its timer, a keepalive when it was provoked, or with nothing in
// flight at the idle time after the last packet, however late in it the report came.
func (p *probing) confirm(ctx context.Context) (found, settled bool) {
	need := p.probe.Wanted - p.sent // of the kernel's own
	if p.first.ProbesOut == 0 && p.first.Retransmits == 0 {
		need = max(need, 1)
	}
	if need <= 0 || p.probe.Blocked || p.probe.NoRoute {
		return true, false
	}
	if had := len(p.own); had < need {
		if found, settled := p.comes(ctx, need); settled || p.absence.found || len(p.own) == had {
			return found, settled
		}
		if len(p.own) >= need {
			p.j.asked = p.own[need-1] + p.last.SRTT // which alone condemns
			p.lookAround()
		}
	}
	// It had left when it was seen.
	last := p.own[min(need, len(p.own))-1]
	return p.wait(ctx, last+policy.AnswerIn(p.last.SRTT)-settle-p.agent.Now())
}

// comes waits for the one question of the kernel's own that is needed, as long as it is
// due; with nothing in flight also for one of several, whose answer would be a sign of life.
func (p *probing) comes(ctx context.Context, need int) (found, settled bool) {
	over := p.agent.Now() + confirmLimit
	for found = true; (need == 1 || !p.last.InFlight()) && !settled && !p.absence.found && len(p.own) == 0; {
		due, set := p.due()
		if set == 0 || p.agent.Now()+due > over {
			break
		}
		late := min(set/timerLate, latest) + keepaliveGrace
		found, settled = p.until(ctx, due+late, func() bool { return len(p.own) > 0 })
		if due, _ := p.due(); due == 0 {
			break // a probe of the tail is followed by a retransmission; nothing else is
		}
	}
	return found, settled
}

// due is how far off the kernel's next question is, and what its timer was set for, at
// most; 0: there is none, or nobody knows.
func (p *probing) due() (in, set time.Duration) {
	s := &p.last
	switch {
	case s.InFlight():
		if s.Timer == 0 {
			return 0, 0
		}
		return s.Timer - time.Millisecond, s.PacketAge + s.Timer
	case !s.Options.KeepAlive:
		return 0, 0
	case p.provoked:
		set = keepaliveAge
	default:
		set = max(s.Options.Idle, time.Millisecond)
	}
	return max(set-s.PacketAge, 0), set
}

// resent reports whether the kernel has retransmitted between two looks what it does not
// count: into a window that the peer took back (kernel-facts L10).
func resent(before, after *conn.Snapshot) bool {
	sent := after.Taken - after.SendAge - (before.Taken - before.SendAge)
	return after.SndWnd == 0 && after.SndUna != after.SndNxt && after.SndNxt == before.SndNxt &&
		after.Retransmits == before.Retransmits && sent > 2*limitTick
}
