// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/policy"
	"github.com/sockhealth/sockhealth/internal/prober"
	"github.com/sockhealth/sockhealth/internal/sockets"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

// probing is the work of one judgement while it runs.
type probing struct {
	agent    *Agent
	j        *judgement
	first    conn.Snapshot   // the look before the first attempt that counts
	last     conn.Snapshot   // the freshest look that found the socket
	sent     int             // segments of ours that this host accepted, on the connection's way
	provoked bool            // the kernel's keepalive has to be calmed again
	kinds    []AttemptKind   // of the attempts made
	attempts attempts        // for the record
	swept    bool            // the siblings are being asked
	lastDue  time.Duration   // when the last attempt is
	bare     time.Duration   // when the kernel was last seen to have asked without data; 0: never
	own      []time.Duration // when it was seen to have asked, in this window
	probe    verdict.Probe
	absence  absence
}

// run probes for one window, and for another where the agent, or the machine, was
// stopped meanwhile: what was lost before says little about the path now, and
// there may be none yet for a moment after the machine has slept. Where that happens
// again and again the question stays open: what the policy demands was not asked. What
// came meanwhile may be as old as that, and is no answer: each window begins with a look.
func (p *probing) run(ctx context.Context) (verdict.Look, verdict.Probe) {
	for begun := 1; ; begun++ {
		p.absence = absence{last: p.agent.Boot()}
		if begun > 1 && !p.fresh() {
			return p.result(false)
		}
		p.first, p.j.first, p.sent, p.bare, p.own = p.last, p.last, 0, 0, nil
		if p.last.ProbesOut > 0 {
			p.bare = p.last.Taken // at the latest
		}
		found, settled := p.window(ctx)
		switch {
		case settled || !p.absence.found:
			return p.result(found)
		case begun == maxWindows:
			if found = p.fresh(); found {
				p.first, p.j.first = p.last, p.last
			}
			look, probe := p.result(found)
			probe.Sent = min(probe.Sent, probe.Wanted-1)
			return look, probe
		}
	}
}

// fresh looks at the socket, and reports whether it was found. Where nobody can tell the
// freshest look that there is has to do.
func (p *probing) fresh() (found bool) {
	s, err := p.agent.again(p.j.ns, p.j.before.ID)
	switch {
	case errors.Is(err, sockets.ErrGone):
		return false
	case err != nil:
		p.agent.Log.Warn("look at a socket under judgement", "socket", p.j.before.ID.String(), "err", err)
	default:
		p.last = s
	}
	return true
}

// maxWindows is how many windows a judgement begins.
const maxWindows = 3

// window makes the attempts, each with its own full time to be answered: it is only
// over when its time has passed after it was made. What makes one late, a timer or a
// walk that was waited for, shortens the time to the next, by half of what that has above
// the peer's limit at most, so that late timers do not add up. The last one keeps its
// distance, and waits until the peer owes an answer (limit.go). settled: the question is
// answered, or the socket is not found any more.
func (p *probing) window(ctx context.Context) (found, settled bool) {
	want := p.j.peer.Probe
	window, spacing := want.Schedule(p.last.SRTT)
	p.probe = verdict.Probe{Done: true, Wanted: want.Attempts, Window: window}
	began, answer := p.agent.Now(), window-time.Duration(want.Attempts-1)*spacing
	p.lastDue = began + time.Duration(want.Attempts-1)*spacing
	closest := policy.MinSpacing + (spacing-policy.MinSpacing)/2
	steady := min(spacing, policy.MinSpacing+unsteady)
	if p.last.PacketAge < settle {
		p.agent.pause(settle)
	}
	for n := range want.Attempts {
		last := n == want.Attempts-1
		if last {
			if found, settled := p.owed(ctx); settled || p.absence.found {
				return found, settled
			}
		}
		if n <= 1 {
			p.j.asked = p.agent.Now() + p.last.SRTT
		}
		p.attempt(last)
		due := began + time.Duration(n+1)*spacing - p.agent.Now()
		switch n {
		case want.Attempts - 1:
			due = answer
		case want.Attempts - 2:
			due = max(due, steady)
		default:
			due = max(due, closest)
		}
		if found, settled := p.wait(ctx, due); settled || p.absence.found {
			return found, settled
		}
		if n >= min(1, want.Attempts-1) {
			p.spread()
		}
	}
	return p.confirm(ctx)
}

// spread does what silence calls for beyond the socket itself.
func (p *probing) spread() {
	p.swept = p.swept || p.agent.sweep(p.j)
	p.lookAround()
}

// lookAround has it found out, so that a close need not wait, whether other peers are
// heard.
func (p *probing) lookAround() {
	if p.agent.underWay(&p.j.before) {
		p.agent.lookAround(p.j)
	}
}

// settle is a few of the kernel's ticks: an answer within the tick of the segment
// before it would go unnoticed, since stamps are in ticks.
const settle = 40 * time.Millisecond

// result sums up. Keepalives and retransmissions were seen as the kernel counts them,
// whether we provoked them or not; an answer sets its count back to 0.
func (p *probing) result(found bool) (verdict.Look, verdict.Probe) {
	p.probe.Sent = len(p.kinds)
	if !p.answered() {
		p.probe.Sent = p.sent + len(p.own)
	}
	if found && p.answered() {
		p.probe.LocalLeg, p.probe.LegUnknown = p.agent.localLeg(p.j.ns, &p.last)
	}
	p.agent.stats.probed(p.kinds, p.answered())
	if !found {
		return verdict.Look{}, p.probe
	}
	return verdict.Look{Found: true, Snapshot: p.last}, p.probe
}

func advanced(before, after uint8) int { return max(0, int(after)-int(before)) }

func (p *probing) answered() bool { return verdict.Heard(&p.first, &p.last) }

// attempt asks the peer once. Nothing in flight: by the kernel's own keepalive,
// which takes the connection's way by itself; it comes when the connection has
// been silent for a second, and none is asked for where that is at the wrong time
// (limit.go). In flight, before that second is over, and in the last attempt, by a
// segment of ours, too: the kernel does not tell why a keepalive did not leave.
func (p *probing) attempt(last bool) {
	provoked := (last || !p.spares()) && p.provoke()
	if provoked && p.last.PacketAge > keepaliveAge && !last {
		return
	}
	a := p.agent
	sent, err := a.send(p.j.ns, &p.last)
	switch {
	case err == nil:
		p.kinds = append(p.kinds, probeSegment)
		p.note(probeSegment, attemptSent)
		p.took(sent)
	case errors.Is(err, prober.ErrBlocked):
		p.probe.Blocked = true
		p.note(probeSegment, attemptBlocked)
		a.stats.refused(probeSegment, resultBlocked)
	case errors.Is(err, prober.ErrNoRoute):
		p.probe.NoRoute, p.probe.LinkDown = true, errors.Is(err, prober.ErrLinkDown)
		p.note(probeSegment, attemptNoRoute)
		a.stats.refused(probeSegment, resultNoRoute)
	default:
		p.note(probeSegment, attemptError)
		a.stats.refused(probeSegment, resultError)
		a.Log.Warn("send probe", "socket", p.j.before.ID.String(), "err", err)
	}
}

// took counts a segment of ours where its way is the connection's. Where it need not be, and
// the connection's own questions are unanswered, an answer may be one to ours alone.
func (p *probing) took(sent prober.Sent) {
	if sent.Err != nil && !p.probe.Apart { // once
		p.agent.Log.Warn("find the way of a connection", "socket", p.j.before.ID.String(), "err", sent.Err)
	}
	switch {
	case sent.Certain:
		p.sent++
		return
	case sent.Multipath:
		p.probe.Multipath = true
	default:
		p.probe.Apart = true
	}
	p.probe.Astray = p.probe.Astray || p.last.ProbesOut > 0 || p.last.Retransmits > 0
}

// note keeps an attempt for the record.
func (p *probing) note(kind AttemptKind, result AttemptResult) {
	p.attempts.note(p.agent.Now(), kind, result)
}

// keepaliveAge is how long a connection must have been silent for the shortest
// TCP_KEEPIDLE, one second, to be due; the rest is for the kernel's tick.
const keepaliveAge = 1050 * time.Millisecond

// provoke makes the kernel send a keepalive, where it would send one at all.
func (p *probing) provoke() bool {
	if p.last.InFlight() || p.last.Orphan || !p.last.Options.KeepAlive {
		return false
	}
	reached, err := p.agent.calls.provoke(p.j.ns, p.j.before.Cookie)
	switch {
	case err == nil && reached:
		p.provoked = true
		p.kinds = append(p.kinds, probeKeepalive)
		p.note(probeKeepalive, attemptAsked)
		return true
	case errors.Is(err, errHeldUp):
		p.provoked = true // perhaps
		p.note(probeKeepalive, attemptError)
		p.agent.stats.refused(probeKeepalive, resultError)
	case err != nil && !errors.Is(err, loader.ErrUnsupported):
		p.note(probeKeepalive, attemptError)
		p.agent.stats.refused(probeKeepalive, resultError)
		p.agent.Log.Warn("provoke keepalive", "socket", p.j.before.ID.String(), "err", err)
	}
	return false
}

// pauses are the waits between looks for an answer: most come within a round
// trip, and a look costs little.
var pauses = [...]time.Duration{
	5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond, 40 * time.Millisecond,
	80 * time.Millisecond, 160 * time.Millisecond,
}

// wait looks until the attempt's time has passed. settled: the question is
// answered, or the socket is not found any more.
func (p *probing) wait(ctx context.Context, d time.Duration) (found, settled bool) {
	return p.until(ctx, d, func() bool { return false })
}

// until is wait that ends as soon as enough is true of the last look.
func (p *probing) until(ctx context.Context, d time.Duration, enough func() bool) (found, settled bool) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	over := p.agent.Now() + d
	for i, left := 0, d; left > 0; i, left = i+1, over-p.agent.Now() {
		timer.Reset(min(pauses[min(i, len(pauses)-1)], left))
		select {
		case <-ctx.Done():
			return true, true
		case <-timer.C:
		}
		s, err := p.agent.again(p.j.ns, p.j.before.ID)
		p.absence.look(p.agent.Boot()) // after the look, which may be what took so long
		if errors.Is(err, sockets.ErrGone) {
			return false, true
		}
		if err != nil {
			p.agent.Log.Warn("look at a socket under judgement", "socket", p.j.before.ID.String(), "err", err)
			continue
		}
		p.attempts.saw(&p.last, &s)
		p.seen(&s)
		p.last = s
		if !s.State.Judgeable() || s.State.PeerFinished() {
			return true, true
		}
		if p.absence.found { // what came may be as old as that
			return true, false
		}
		if p.answered() {
			return true, true
		}
		if enough() {
			break
		}
	}
	return true, false
}
