// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"net"
	"slices"

	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
)

// there and back are the packets of the connection's directions, from near to far and
// from far to near.
func (p *play) there() lab.Match { return oneWay(p.near.LocalAddr(), p.near.RemoteAddr()) }
func (p *play) back() lab.Match  { return oneWay(p.near.RemoteAddr(), p.near.LocalAddr()) }

func (p *play) both() lab.Match {
	m := p.there()
	m.Both = true
	return m
}

// oneWay are the packets of a connection's one direction.
func oneWay(from, to net.Addr) lab.Match {
	a, b := labtest.Addr(from), labtest.Addr(to)
	return lab.Match{Src: lab.Only(a.Addr()), SrcPort: a.Port(), Dst: lab.Only(b.Addr()), DstPort: b.Port()}
}

// anyWay is a random silence: of one direction, or both.
func (p *play) anyWay() lab.Match {
	return []lab.Match{p.there(), p.back(), p.both()}[p.IntN(3)]
}

// drop loses packets on the path until the play ends, or until it is healed.
func (p *play) drop(m lab.Match) *lab.Fault {
	p.Helper()
	fault := labtest.Fault(p)(p.Drop(m))
	p.faults = append(p.faults, fault)
	return fault
}

// heal ends a loss now.
func (p *play) heal(fault *lab.Fault) {
	p.Helper()
	p.faults = slices.DeleteFunc(p.faults, func(f *lab.Fault) bool { return f == fault })
	labtest.Heal(p, fault)
}
