// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"time"

	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
)

// losses are connections whose path loses all attempts but one, or fewer: questions or
// answers, in any order.
func losses() []scenario {
	return []scenario{
		{name: "lost probes, nothing in flight", want: "alive_slow: kept", entry: anyOf, lives: true, play: lostIdle},
		{name: "lost probes, call in flight", want: "alive_slow: kept", entry: anyOf, lives: true, play: lostInFlight},
		{name: "lost probes, no user timeout", want: "alive_slow: kept", entry: capped, lives: true, play: lostIdle},
	}
}

func lostIdle(p *play) {
	p.works()
	p.delivered()
	p.rest(0, 2*time.Second)
	p.loses()
	p.kept(aliveSlow)
}

// lostInFlight: the request itself never gets through before the verdict.
func lostInFlight(p *play) {
	p.works()
	long := p.there()
	long.MinLen = 150
	held := p.drop(long)
	p.call()
	p.timeout()
	p.loses()
	p.heal(held)
	p.kept(aliveSlow)
}

// loses reports the connection, while the path loses the attempts of a random pattern
// one after the other, each by itself.
func (p *play) loses() {
	p.Helper()
	pattern := make([]lab.Match, 1+p.IntN(p.probes[p.entry].Attempts-1))
	for i := range pattern {
		pattern[i] = []lab.Match{p.there(), p.back()}[p.IntN(2)]
		pattern[i].MaxLen = 100
	}
	lose := func(m lab.Match) *lab.Fault { return labtest.Fault(p)(p.DropFirst(m, 1)) }
	fault := lose(pattern[0])
	p.faults = append(p.faults, fault)
	p.ask()
	for i := 1; ; time.Sleep(5 * time.Millisecond) {
		if len(p.answer) > 0 {
			break
		}
		if i < len(pattern) && labtest.Packets(p, fault) > 0 {
			fault = lose(pattern[i])
			i++
		}
	}
	p.told()
	p.lost()
}
