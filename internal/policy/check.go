// SPDX-License-Identifier: Apache-2.0

package policy

import "net/netip"

// check looks at the file as a whole, after every value was read.
func (d *decoder) check(f *file) {
	if f.version == (pos{}) {
		d.errorf(f.at, "version is missing: write version: 1")
	}
	if f.peersAt == (pos{}) {
		d.errorf(f.at, "peers is missing: add a peer with name and cidrs")
	}
	defaults := f.defaults.over(builtin())
	d.combinations(defaults)
	d.limitsFit(f.limits)
	first := make(map[string]int)
	for _, e := range f.peers {
		e.settings = e.settings.over(defaults)
		d.combinations(e.settings)
		d.entry(e)
		if line, again := first[e.name]; again {
			d.errorf(e.nameAt, "duplicate name %q: choose another, the first stands on line %d", e.name, line)
		} else if e.name != "" {
			first[e.name] = e.nameAt.line
		}
	}
	d.overlaps(f.peers)
	d.sizes(f)
}

// entry looks at one peer alone.
func (d *decoder) entry(e *entry) {
	if e.nameAt == (pos{}) {
		d.errorf(e.at, "peer has no name: add name, such as name: buffer")
	}
	if e.cidrsAt == (pos{}) {
		d.errorf(e.at, "peer has no cidrs: add cidrs, such as cidrs: [10.20.0.0/16]")
	}
	d.askable(&e.app, e.settings.directions)
	cidrs, excepts := d.unique(e.cidrs, "cidr"), d.unique(e.except, "except")
	for _, c := range e.except {
		if _, ok := enclosing(c.Prefix, cidrs); !ok && !e.cidrsBad && e.cidrsAt != (pos{}) {
			d.errorf(pos{c.Line, c.Column}, "except %s lies in none of this peer's cidrs: remove it, or write a part of one of them", c.Prefix)
		}
	}
	// A CIDR inside an except of its own peer would be taken out whole.
	for _, c := range e.cidrs {
		if x, ok := enclosing(c.Prefix, excepts); ok {
			d.errorf(pos{c.Line, c.Column}, "cidr %s can never match, it lies in this peer's except %s on line %d: remove one of them", c.Prefix, x.Prefix, x.Line)
		}
	}
}

// unique reports prefixes that stand twice in one list and returns the rest.
func (d *decoder) unique(list []CIDR, what string) map[netip.Prefix]CIDR {
	set := make(map[netip.Prefix]CIDR, len(list))
	for _, c := range list {
		if first, again := set[c.Prefix]; again {
			d.errorf(pos{c.Line, c.Column}, "%s %s stands twice in this peer, first on line %d: remove one", what, c.Prefix, first.Line)
			continue
		}
		set[c.Prefix] = c
	}
	return set
}

// enclosing returns the smallest prefix of the set that p lies in.
func enclosing(p netip.Prefix, set map[netip.Prefix]CIDR) (CIDR, bool) {
	for bits := p.Bits(); bits >= 0; bits-- {
		if c, ok := set[netip.PrefixFrom(p.Addr(), bits).Masked()]; ok {
			return c, true
		}
	}
	return CIDR{}, false
}

// overlaps refuses a CIDR that two peers claim for the same port and
// direction: neither would be more specific than the other.
func (d *decoder) overlaps(peers []*entry) {
	type claim struct {
		*entry
		line int
	}
	claims := make(map[netip.Prefix][]claim)
	for _, e := range peers {
		if e.portsBad || e.settings.directions.bad {
			continue
		}
		for _, c := range e.cidrs {
			for _, other := range claims[c.Prefix] {
				if other.entry != e && e.overlap(other.entry) {
					d.errorf(pos{c.Line, c.Column}, "cidr %s stands in peer %q on line %d too, with overlapping ports and direction: "+
						"remove one, or keep their ports or directions apart", c.Prefix, other.name, other.line)
					break
				}
			}
			// Above the limit sizes refuses the prefix; more claims would
			// only make this loop quadratic.
			if len(claims[c.Prefix]) <= MaxRules {
				claims[c.Prefix] = append(claims[c.Prefix], claim{e, c.Line})
			}
		}
	}
}

func (e *entry) overlap(other *entry) bool {
	if e.settings.directions.value&other.settings.directions.value == 0 {
		return false
	}
	a, b := portsOrAll(e.ports), portsOrAll(other.ports)
	for len(a) > 0 && len(b) > 0 {
		switch {
		case a[0].Hi < b[0].Lo:
			a = a[1:]
		case b[0].Hi < a[0].Lo:
			b = b[1:]
		default:
			return true
		}
	}
	return false
}

// sizes refuses what the BPF maps cannot hold.
func (d *decoder) sizes(f *file) {
	where := make(map[netip.Prefix]pos)
	peers := make([]Peer, len(f.peers))
	for i, e := range f.peers {
		peers[i] = e.peer()
		for _, c := range e.cidrs {
			where[c.Prefix] = pos{c.Line, c.Column}
		}
	}
	prefixes := compile(peers)
	if n := len(prefixes); n > MaxPrefixes {
		d.errorf(f.peersAt, "peers have %d prefixes, more than %d: use larger CIDRs", n, MaxPrefixes)
	}
	var full netip.Prefix
	for _, p := range prefixes {
		if len(p.Rules) <= MaxRules || full.IsValid() && full.Contains(p.Prefix.Addr()) {
			continue
		}
		full = p.Prefix // what lies inside has them too
		d.errorf(where[p.Prefix], "cidr %s has more than %d rules, those of the prefixes around it included: "+
			"give its peers fewer port ranges, or join peers", p.Prefix, MaxRules)
	}
}

// peer gives the entry its final form.
func (e *entry) peer() Peer {
	s := e.settings
	return Peer{
		Name: e.name, Line: e.at.line, Options: s.options(),
		Probe:    Probe{Window: s.window.value, Attempts: s.attempts.value},
		InFlight: s.inFlight.value, Override: s.override.value, Observe: s.observe.value,
		LeaveExisting: s.leaveExisting.value, KernelSockets: s.kernelSockets.value,
		CloseSilentAfter: s.silent.value, Silence: s.silence.value, ConnectTimeout: s.connect.value, AppProbe: e.app.probe(),
		Directions: s.directions.value,
		Ports:      e.ports, CIDRs: e.cidrs, Except: e.except,
	}
}
