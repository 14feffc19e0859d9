// SPDX-License-Identifier: Apache-2.0

package policy

import "strconv"

// Limits bound how many connections are closed because they were judged so. The
// kernel's own bounds know no such limit.
type Limits struct {
	// PerPeer and PerNode are closes a second, at least 1: to one address,
	// whatever entry, port and network namespace, and in all.
	PerPeer, PerNode int
}

// DefaultLimits are those of a file that gives none.
func DefaultLimits() Limits { return Limits{PerPeer: 50, PerNode: 200} }

// maxCloses is more than a node can close in a second.
const maxCloses = 100_000

// limits are Limits as the file gives them.
type limits struct {
	perPeer, perNode setting[int]
}

func builtinLimits() limits {
	l := DefaultLimits()
	return limits{perPeer: setting[int]{value: l.PerPeer}, perNode: setting[int]{value: l.PerNode}}
}

// limitFields are the keys of limits.
func (d *decoder) limitFields(l *limits) []field {
	b := DefaultLimits()
	return []field{{name: "closes_per_second", sub: []field{
		{name: "per_peer", def: strconv.Itoa(b.PerPeer), want: "1 to 100000",
			read: number(d, &l.perPeer, "closes_per_second per_peer", 1, maxCloses)},
		{name: "per_node", def: strconv.Itoa(b.PerNode), want: "1 to 100000",
			read: number(d, &l.perNode, "closes_per_second per_node", 1, maxCloses)},
	}}}
}

// limitsFit refuses a budget that no peer could ever use up. The default of a peer
// gives way.
func (d *decoder) limitsFit(l limits) {
	if l.perPeer.bad || l.perNode.bad || !l.perPeer.given() || l.perPeer.value <= l.perNode.value {
		return
	}
	d.errorf(l.perPeer.at, "closes_per_second per_peer %d is above per_node %d, which ends it: raise per_node to %[1]d or lower per_peer to %[2]d",
		l.perPeer.value, l.perNode.value)
}

func (l limits) final() Limits {
	return Limits{PerPeer: min(l.perPeer.value, l.perNode.value), PerNode: l.perNode.value}
}
