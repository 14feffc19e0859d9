// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
)

// peerName is what the client calls its peer.
const peerName = "buffer"

// pointName makes the file at path say that the peer's name is at addr, in the
// form of hosts(5). A reader sees the old file or the new one.
func pointName(path string, addr netip.Addr) error {
	draft := path + ".new"
	if err := os.WriteFile(draft, []byte(addr.String()+" "+peerName+"\n"), 0o600); err != nil {
		return fmt.Errorf("point name %q at %s: %w", peerName, addr, err)
	}
	if err := os.Rename(draft, path); err != nil {
		return fmt.Errorf("point name %q at %s: %w", peerName, addr, err)
	}
	return nil
}

// resolve looks a name up in the file at path.
func resolve(path, name string) (netip.Addr, error) {
	hosts, err := os.ReadFile(path)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("resolve %q: %w", name, err)
	}
	for line := range strings.Lines(string(hosts)) {
		fields := strings.Fields(line)
		if len(fields) != 2 || fields[1] != name {
			continue
		}
		addr, err := netip.ParseAddr(fields[0])
		if err != nil {
			return netip.Addr{}, fmt.Errorf("resolve %q: %w", name, err)
		}
		return addr, nil
	}
	return netip.Addr{}, fmt.Errorf("resolve %q: no such name", name)
}
