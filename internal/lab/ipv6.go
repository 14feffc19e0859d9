// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"net/netip"
	"os"
	"slices"
)

// IPv6 reports whether this machine's kernel has it: it may be built out, or off
// since the boot (ipv6.disable=1). A lab without it has IPv4 alone.
func IPv6() bool {
	_, err := os.Stat("/proc/sys/net/ipv6")
	return err == nil
}

// usable leaves out the addresses that the kernel does not take.
func usable(addrs ...netip.Addr) []netip.Addr {
	if IPv6() {
		return addrs
	}
	return slices.DeleteFunc(addrs, func(a netip.Addr) bool { return !a.Is4() })
}
