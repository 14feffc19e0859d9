// SPDX-License-Identifier: Apache-2.0

package listeners

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/policy"
	"github.com/sockhealth/sockhealth/internal/sockdiag"
)

// Listeners are those of one namespace.
type Listeners struct {
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

// Lister lists sockets of the namespace (sockdiag.Conn).
type Lister interface {
	List(f sockdiag.Filter, fn func(sockdiag.Socket) error) error
}

// Read reads the listeners of a namespace. A list that changed while it was read may
// lack some, as any may.
func Read(ns *netns.NS, in Lister) (*Listeners, error) {
	lo, hi, err := ports(ns)
	if err != nil {
		return nil, err
	}
	l := newListeners(lo, hi)
	err = in.List(sockdiag.Filter{States: sockdiag.States(conn.Listen)}, l.add)
	if err != nil && !errors.Is(err, sockdiag.ErrInterrupted) {
		return nil, err
	}
	return l, nil
}

// ports returns the range that a client's port is from.
func ports(ns *netns.NS) (lo, hi uint16, err error) {
	const file = "/proc/sys/net/ipv4/ip_local_port_range"
	err = ns.Do(func() error {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if _, err = fmt.Sscan(string(text), &lo, &hi); err != nil {
			return fmt.Errorf("read %s: %w", file, err)
		}
		return nil
	})
	return lo, hi, err
}

func newListeners(lo, hi uint16) *Listeners {
	return &Listeners{at: make(map[listener]bool), ports: make(map[uint16]bool), lo: lo, hi: hi}
}

func (l *Listeners) add(s sockdiag.Socket) error {
	l.at[listener{s.Family, s.Local.Addr(), s.Local.Port()}] = true
	l.ports[s.Local.Port()] = true
	return nil
}

// Directions returns those that a connection may have, by its own address and
// port: inbound where a listener takes both, outbound where none has the port,
// and either where that is not certain.
func (l *Listeners) Directions(id *conn.ID) policy.Directions {
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
