// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"net/netip"
	"strings"

	"go.yaml.in/yaml/v4"
)

func (d *decoder) cidrs(n *yaml.Node, e *entry) {
	e.cidrsAt = at(n)
	e.cidrs, e.cidrsBad = d.prefixes(n, "cidr")
	if !e.cidrsBad && len(e.cidrs) == 0 {
		d.errorf(at(n), "cidrs is empty: give at least one, such as 10.20.0.0/16")
		e.cidrsBad = true
	}
}

func (d *decoder) except(n *yaml.Node, e *entry) {
	e.except, _ = d.prefixes(n, "except")
}

// prefixes reads a list of CIDRs and says whether any was refused.
func (d *decoder) prefixes(n *yaml.Node, what string) (list []CIDR, bad bool) {
	nodes, ok := d.list(n, map[string]string{"cidr": "cidrs", "except": "except"}[what])
	for _, one := range nodes {
		text, good := d.scalar(one, what)
		if !good {
			bad = true
			continue
		}
		prefix, problem := parseCIDR(text)
		if what == "except" && strings.Contains(problem, writtenAsIPv6) {
			problem += ", or remove it where cidrs are IPv6 alone, which never covers IPv4"
		}
		if problem != "" {
			d.errorf(at(one), "%s %s", what, problem)
			bad = true
			continue
		}
		list = append(list, CIDR{Prefix: prefix, Line: one.Line, Column: one.Column})
	}
	return list, bad || !ok
}

const writtenAsIPv6 = "is IPv4 written as IPv6"

// parseCIDR returns a prefix without host bits, zone or mapped address, or the
// problem with the text and what to write instead.
func parseCIDR(text string) (netip.Prefix, string) {
	address, length, hasLength := strings.Cut(text, "/")
	addr, err := netip.ParseAddr(address)
	if err != nil {
		return netip.Prefix{}, fmt.Sprintf("%s is no CIDR: write one such as 10.20.0.0/16 or fd00:20::/64", quote(text))
	}
	plain := addr.WithZone("")
	if !hasLength {
		whole := plain.Unmap()
		return netip.Prefix{}, fmt.Sprintf("%s has no prefix length: write %s/%d for this address alone", text, whole, whole.BitLen())
	}
	bits, ok := digits(length)
	if !ok || bits > plain.BitLen() {
		return netip.Prefix{}, fmt.Sprintf("%s has the prefix length %s: write a number from 0 to %d", quote(text), quote(length), plain.BitLen())
	}
	prefix := netip.PrefixFrom(plain, bits)
	switch masked := prefix.Masked(); {
	case addr.Zone() != "":
		return netip.Prefix{}, fmt.Sprintf("%s has the zone %s, and a policy speaks of addresses on every link: write %s", text, addr.Zone(), masked)
	case plain.Is4In6():
		return netip.Prefix{}, fmt.Sprintf("%s %s: write %s", text, writtenAsIPv6, unmap(prefix))
	case masked != prefix:
		return netip.Prefix{}, fmt.Sprintf("%s has host bits set: write %s", text, masked)
	}
	return prefix, ""
}

// unmap gives the IPv4 form of an IPv4-mapped prefix.
func unmap(p netip.Prefix) netip.Prefix {
	return netip.PrefixFrom(p.Addr().Unmap(), max(p.Bits()-96, 0)).Masked()
}
