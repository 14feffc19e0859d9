// SPDX-License-Identifier: Apache-2.0

package judge

import "net/netip"

// variant is a kind of connection: what its judged end is.
type variant struct {
	family  string
	inbound bool // it was accepted, not opened
}

// The families. In mapped IPv4 is spoken by an IPv6 socket.
const (
	ipv4   = "IPv4"
	ipv6   = "IPv6"
	mapped = "mapped"
)

// variants lists all.
func variants() []variant {
	return []variant{{ipv4, false}, {ipv6, false}, {mapped, false}, {ipv4, true}, {ipv6, true}, {mapped, true}}
}

func (v variant) String() string {
	if v.inbound {
		return v.family + " inbound"
	}
	return v.family + " outbound"
}

// pick is the address that packets of the variant carry.
func (v variant) pick(v4, v6 netip.Addr) netip.Addr {
	if v.family == ipv6 {
		return v6
	}
	return v4
}

// Which variants make sense.
func outbound(v variant) bool     { return !v.inbound }
func outboundIPv4(v variant) bool { return !v.inbound && v.family != ipv6 }
