// SPDX-License-Identifier: Apache-2.0

package coverage

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/policy"
	"github.com/sockhealth/sockhealth/internal/sockdiag"
)

// listeners are those of one namespace.
type listeners struct {
	at    map[listener]bool
	ports map[uint16]bool
	// lo and hi bound the ports that a client gets by itself.
	lo, hi uint16
}

// listener takes what comes to sockets of its family.
type listener struct {
	family uint8
	addr   netip.Addr
	port   uint16
}

func newListeners(lo, hi uint16) *listeners {
	return &listeners{at: make(map[listener]bool), ports: make(map[uint16]bool), lo: lo, hi: hi}
}

func (l *listeners) add(s sockdiag.Socket) error {
	l.at[listener{s.Family, s.Local.Addr(), s.Local.Port()}] = true
	l.ports[s.Local.Port()] = true
	return nil
}

// directions returns those that a connection may have, by its own address and
// port: inbound where a listener takes both, outbound where none has the port,
// and either where that is not certain.
func (l *listeners) directions(id *conn.ID) policy.Directions {
	anywhere := netip.IPv4Unspecified()
	if id.Family == unix.AF_INET6 {
		anywhere = netip.IPv6Unspecified()
	}
	port := id.Local.Port()
	switch {
	case l.at[listener{id.Family, id.Local.Addr(), port}], l.at[listener{id.Family, anywhere, port}]:
		return policy.Directions(conn.Inbound)
	case l.ports[port], port < l.lo, port > l.hi:
		return policy.Both
	}
	return policy.Directions(conn.Outbound)
}
