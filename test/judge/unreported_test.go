// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"time"
)

// unreported are connections that nobody reports, and that the policy has watched.
func unreported() []scenario {
	return []scenario{
		{name: "dead, nobody reports", want: "dead_path: closed", entry: watched, play: deadUnreported},
		{name: "slow, nobody reports", want: "alive_slow: kept", entry: watched, only: outbound, lives: true, play: slowUnreported},
		{name: "idle, nobody reports", want: "kept", entry: watched, lives: true, play: idleUnreported},
	}
}

// apart is more than a tick of the kernel's: a request that leaves in the tick in which the
// answer before it came may have been answered by that, as far as anybody can tell.
const apart = 15 * time.Millisecond

// deadUnreported: a request goes out, and nothing comes back. On an inbound connection
// one that was acknowledged is none.
func deadUnreported(p *play) {
	p.works()
	p.rest(apart, 10*apart)
	if !p.inbound && p.IntN(2) == 0 {
		p.delivered()
		p.asked = conn.Now() + silence
		p.drop(p.anyWay())
	} else {
		p.drop(p.anyWay())
		p.call()
		p.asked = p.wrote + silence
	}
	p.out.began, p.out.dead = p.asked, true
	p.judged()
	p.closed(pass, deadPath)
}

// slowUnreported: nothing came back, and the peer answers the probe.
func slowUnreported(p *play) {
	p.works()
	p.rest(apart, 10*apart)
	p.delivered()
	p.out.began = conn.Now() + silence
	p.judged()
	p.rest(0, silence)
	p.kept(aliveSlow)
}

// idleUnreported: the last request was answered, and nothing is awaited. Nobody asks.
func idleUnreported(p *play) {
	p.works()
	p.cookie = labtest.Cookie(p, p.near)
	p.rest(2*silence, 4*silence)
	if n := len(p.records()); n > 0 {
		p.fail("judged %d times", n)
	}
	p.lives()
}

// judged waits for the verdict that the agent comes to by itself.
func (p *play) judged() {
	p.Helper()
	p.cookie = labtest.Cookie(p, p.near)
	labtest.Eventually(p, late, func() bool {
		for _, e := range p.records() {
			// While a close waits a second look may find the same suspect, and the socket gone.
			if e.Reporter == "silence" && verdictOf(e.Verdict, e.Reason) != "gone (destroyed)" {
				p.out.given, p.out.action = verdictOf(e.Verdict, e.Reason), e.Action
				p.out.inFlight = e.Evidence.InFlight
				return true
			}
		}
		return false
	}, "a judgement without a report")
	p.out.answered = max(conn.Now(), p.out.began)
}
