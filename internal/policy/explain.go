// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/sockhealth/sockhealth/internal/conn"
)

// Explanation says what the policy does for one address and service port.
type Explanation struct {
	// File is the policy's, for the lines below.
	File string
	// Service is the address asked for, unmapped, and the service's port.
	Service netip.AddrPort
	// Limits are the policy's.
	Limits Limits
	// Ground is what the figures stand on.
	Ground Ground
	// Answers has one element for each direction asked for.
	Answers []Answer
}

// Answer is the explanation of one direction.
type Answer struct {
	Direction conn.Direction
	// Peer is the one that matches, nil where none does; then only NearMisses
	// is set.
	Peer *Peer
	// CIDR is the peer's prefix that matched.
	CIDR    CIDR
	Figures Figures
	// NearMisses are entries whose CIDR contains the address and that do not
	// match all the same, in the order of the file.
	NearMisses []NearMiss
}

// NearMiss is an entry that speaks of the address but not of the connection.
type NearMiss struct {
	Peer *Peer
	CIDR CIDR
	// Why is a clause such as "port 7200 is not in 7100-7199".
	Why string
}

// Explain looks up a service: connections to that remote address and port, and
// connections from that address to that local port. Without directions it
// explains both, outbound first.
func (p *Policy) Explain(service netip.AddrPort, directions ...conn.Direction) Explanation {
	return p.ExplainOn(Ground{}, service, directions...)
}

// ExplainOn is Explain with figures that stand on this ground.
func (p *Policy) ExplainOn(g Ground, service netip.AddrPort, directions ...conn.Direction) Explanation {
	if len(directions) == 0 {
		directions = []conn.Direction{conn.Outbound, conn.Inbound}
	}
	addr := service.Addr().Unmap().WithZone("")
	e := Explanation{File: p.File, Ground: g, Limits: p.Limits, Service: netip.AddrPortFrom(addr, service.Port())}
	for _, direction := range directions {
		e.Answers = append(e.Answers, p.answer(g, e.Service, direction))
	}
	return e
}

func (p *Policy) answer(g Ground, service netip.AddrPort, direction conn.Direction) Answer {
	a := Answer{Direction: direction}
	if peer, ok := p.match(service.Addr(), service.Port(), direction); ok {
		a.Peer = peer
		a.CIDR, _ = longest(peer.CIDRs, service.Addr())
		a.Figures = peer.FiguresOn(g)
		return a
	}
	for i := range p.Peers {
		peer := &p.Peers[i]
		if c, ok := longest(peer.CIDRs, service.Addr()); ok {
			why := peer.miss(service, direction, p.File)
			a.NearMisses = append(a.NearMisses, NearMiss{Peer: peer, CIDR: c, Why: why})
		}
	}
	return a
}

// longest returns the most specific prefix that contains addr.
func longest(list []CIDR, addr netip.Addr) (best CIDR, ok bool) {
	for _, c := range list {
		if c.Prefix.Contains(addr) && (!ok || c.Prefix.Bits() > best.Prefix.Bits()) {
			best, ok = c, true
		}
	}
	return best, ok
}

// miss says why a peer with a fitting CIDR does not match.
func (p *Peer) miss(service netip.AddrPort, direction conn.Direction, file string) string {
	var why []string
	if x, ok := longest(p.Except, service.Addr()); ok {
		why = append(why, fmt.Sprintf("%s is excepted by %s (%s:%d)", service.Addr(), x.Prefix, file, x.Line))
	}
	if !p.Directions.Has(direction) {
		why = append(why, fmt.Sprintf("its direction is %s", p.Directions))
	}
	if !p.speaksOf(service.Port()) {
		why = append(why, fmt.Sprintf("port %d is not in %s", service.Port(), portList(p.Ports)))
	}
	return strings.Join(why, ", ")
}

func (p *Peer) speaksOf(port uint16) bool {
	for _, r := range portsOrAll(p.Ports) {
		if r.Lo <= port && port <= r.Hi {
			return true
		}
	}
	return false
}

// portList writes at most a handful of ranges.
func portList(ports []PortRange) string {
	var list []string
	for i, r := range ports {
		if i == 5 {
			list = append(list, fmt.Sprintf("%d more", len(ports)-i))
			break
		}
		list = append(list, r.String())
	}
	return strings.Join(list, ", ")
}
