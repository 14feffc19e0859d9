// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"math"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/lab"
)

// outages are paths that are silent for a while.
func outages() []scenario {
	return []scenario{
		{name: "outage over in the window", want: "alive_slow: kept", entry: anyOf, play: func(p *play) { p.outage(0, 1) }},
		{name: "outage over at a random moment", want: "by its end, below", entry: anyOf, play: func(p *play) { p.outage(0, 1.6) }},
		{name: "outage over after the window", want: "dead_path: closed", entry: anyOf, play: func(p *play) { p.outage(1.4, 1.8) }},
		{name: "outage over at a random moment, no user timeout", want: "by its end, below", entry: capped, play: func(p *play) { p.outage(0, 1.6) }},
		{name: "outage over before the report", want: "alive_slow: kept", entry: anyOf, lives: true, play: outageOver},
	}
}

// strikes begins an outage, and has a call in flight in it, or none.
func (p *play) strikes() *lab.Fault {
	p.works()
	p.rest(0, 1200*time.Millisecond)
	fault := p.drop(p.anyWay())
	if p.IntN(2) == 0 {
		p.call()
	}
	p.timeout()
	return fault
}

// outage ends at a random moment between two that are given in parts of the time until
// the last attempt is due. Which verdict is right goes by when that has been: a
// connection whose path was well again before the last attempt was due must live; one
// whose path was silent until the verdict must be closed. In between, while the last
// attempt is on its way or waited for, it may be either; what is done must fit the
// verdict. A report may join a judgement that was under way (a survey had asked): its last
// attempt is earlier, as its record shows.
func (p *play) outage(from, to float64) {
	fault := p.strikes()
	probe := p.probes[p.entry]
	_, spacing := probe.Schedule(0)
	last := time.Duration(probe.Attempts-1) * spacing
	p.ask()
	p.until(p.asked + p.between(time.Duration(from*float64(last)), time.Duration(to*float64(last))))
	begins := conn.Now()
	p.heal(fault)
	healed := conn.Now()
	p.told()
	last = min(p.asked+last, p.lastAsked())
	switch {
	case healed <= last:
		p.out.lives = true
		p.kept(aliveSlow)
	case begins >= p.out.answered:
		p.closed(0, deadPath)
	case p.out.given == deadPath:
		p.closed(0, deadPath)
	default:
		p.kept(aliveSlow)
	}
}

// lastAsked is when the last attempt of the judgement that condemned was made, as its
// record has it, where it began before the report; else: never.
func (p *play) lastAsked() time.Duration {
	p.Helper()
	last := time.Duration(math.MaxInt64)
	for _, e := range p.records() {
		if verdictOf(e.Verdict, e.Reason) != deadPath || p.out.given != deadPath || len(e.Probes) == 0 || e.Probes[0].AtMS >= 0 {
			continue
		}
		for _, a := range e.Probes {
			if a.Kind == "segment" || a.Kind == "keepalive" {
				last = p.asked + time.Duration(a.AtMS)*time.Millisecond
			}
		}
	}
	return last
}

// outageOver: by the time of the report the path is well, and the kernel's next
// retransmission may be seconds away.
func outageOver(p *play) {
	fault := p.strikes()
	p.rest(0, 3*time.Second)
	p.heal(fault)
	p.rest(0, 300*time.Millisecond)
	p.report()
	p.kept(aliveSlow)
}
