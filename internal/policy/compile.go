// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"
)

// Rule is one way to match below a prefix.
type Rule struct {
	// Peer is an index into Policy.Peers.
	Peer int
	// PortLo and PortHi bound the service's port, inclusive: the remote port
	// of an outbound connection, the local port of an inbound one.
	PortLo, PortHi uint16
	Directions     Directions
}

// Prefix is one entry of the look-up by longest prefix: the rules for the
// addresses that lie in it and in no longer prefix of the policy.
type Prefix struct {
	// Prefix is IPv4 for an IPv4 CIDR; it has no host bits.
	Prefix netip.Prefix
	// Rules stand most specific first, at most MaxRules; the first that
	// matches wins. No rule: a connection from or to here is left alone.
	Rules []Rule
}

// Compile returns each distinct CIDR and except of all peers with the rules
// that apply there: its own, then those of every prefix around it. What a peer
// excepts is left out of the lists, so that the look-up knows no exception: an
// except alone may have an empty list. IPv4 comes first, each family in the
// order of addresses, a prefix before those inside it.
//
// All prefixes may go into one trie over IPv4-mapped addresses: where an IPv6
// prefix is so short that it contains ::ffff:0:0/96, the result holds 0.0.0.0/0
// too, if need be without rules, so that ::/0 speaks of IPv6 alone.
//
// The caller must not change the rules.
func (p *Policy) Compile() []Prefix { return slices.Clone(p.prefixes) }

// index prepares Compile and Match.
func (p *Policy) index() {
	p.prefixes = compile(p.Peers)
	p.table = new(bart.Table[[]Rule])
	for _, one := range p.prefixes {
		p.table.Insert(one.Prefix, one.Rules)
	}
}

// site is what the peers say about one prefix itself.
type site struct {
	own      []Rule
	excepted []int // peers, ascending
}

// compile keeps at most MaxRules+1 rules of a prefix: enough to see that there
// are too many, too few to blow up.
func compile(peers []Peer) []Prefix {
	sites := collect(peers)
	order := make([]netip.Prefix, 0, len(sites))
	for prefix := range sites {
		order = append(order, prefix)
	}
	slices.SortFunc(order, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	prefixes := make([]Prefix, 0, len(order))
	var around []int // indices of the prefixes that contain the current one
	for _, prefix := range order {
		for len(around) > 0 && !prefixes[around[len(around)-1]].Prefix.Contains(prefix.Addr()) {
			around = around[:len(around)-1]
		}
		var inherited []Rule
		if len(around) > 0 {
			inherited = prefixes[around[len(around)-1]].Rules
		}
		around = append(around, len(prefixes))
		prefixes = append(prefixes, Prefix{Prefix: prefix, Rules: sites[prefix].rules(inherited)})
	}
	return prefixes
}

// collect gathers the sites of all peers.
func collect(peers []Peer) map[netip.Prefix]*site {
	sites := make(map[netip.Prefix]*site)
	mapped := netip.AddrFrom16(netip.IPv4Unspecified().As16()) // ::ffff:0:0
	place := func(p netip.Prefix) *site {
		if sites[p] == nil {
			sites[p] = new(site)
		}
		if p.Contains(mapped) {
			barrier := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
			if sites[barrier] == nil {
				sites[barrier] = new(site)
			}
		}
		return sites[p]
	}
	for i, peer := range peers {
		ports := portsOrAll(peer.Ports)
		for _, c := range peer.CIDRs {
			s := place(c.Prefix)
			for _, r := range ports {
				if len(s.own) <= MaxRules {
					s.own = append(s.own, Rule{Peer: i, PortLo: r.Lo, PortHi: r.Hi, Directions: peer.Directions})
				}
			}
		}
		for _, c := range peer.Except {
			s := place(c.Prefix)
			s.excepted = append(s.excepted, i)
		}
	}
	return sites
}

// rules are the site's own, then the inherited ones that no peer excepts here.
func (s *site) rules(inherited []Rule) []Rule {
	list := slices.Clone(s.own)
	for _, r := range inherited {
		if _, excepted := slices.BinarySearch(s.excepted, r.Peer); !excepted && len(list) <= MaxRules {
			list = append(list, r)
		}
	}
	return list
}

// portsOrAll makes the absent list explicit. Port 0 is in it: a raw stack may
// use it.
func portsOrAll(ports []PortRange) []PortRange {
	if len(ports) == 0 {
		return []PortRange{{Lo: 0, Hi: 65535}}
	}
	return ports
}
