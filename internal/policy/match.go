// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net/netip"

	"github.com/sockhealth/sockhealth/internal/conn"
)

// Match returns the peer that a connection belongs to, as the BPF programs
// find it: longest prefix, then the first rule whose port and direction match.
// The service's port is remote's for outbound connections and localPort for
// inbound ones; the other one does not matter. An IPv4-mapped remote address
// means its IPv4 address.
func (p *Policy) Match(remote netip.AddrPort, localPort uint16, direction conn.Direction) (*Peer, bool) {
	switch direction {
	case conn.Outbound:
		return p.match(remote.Addr(), remote.Port(), direction)
	case conn.Inbound:
		return p.match(remote.Addr(), localPort, direction)
	}
	return nil, false
}

func (p *Policy) match(addr netip.Addr, port uint16, direction conn.Direction) (*Peer, bool) {
	if p.table == nil {
		return nil, false
	}
	rules, _ := p.table.Lookup(addr.Unmap())
	for _, r := range rules {
		if r.Directions.Has(direction) && r.PortLo <= port && port <= r.PortHi {
			return &p.Peers[r.Peer], true
		}
	}
	return nil, false
}

// Choose returns the peer that names a connection by one of the directions that it may
// have, and by which: of two the one whose user timeout is tighter; nil: none does.
func (p *Policy) Choose(remote netip.AddrPort, localPort uint16, directions Directions) (*Peer, conn.Direction) {
	var best *Peer
	which := conn.DirectionUnknown
	for _, d := range []conn.Direction{conn.Outbound, conn.Inbound} {
		if !directions.Has(d) {
			continue
		}
		peer, ok := p.Match(remote, localPort, d)
		if ok && (best == nil || peer.Options.UserTimeout < best.Options.UserTimeout) {
			best, which = peer, d
		}
	}
	return best, which
}
