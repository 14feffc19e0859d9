// SPDX-License-Identifier: Apache-2.0

package prober

import (
	"errors"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/conntrack"
	"github.com/sockhealth/sockhealth/internal/netns"
)

// way is how the packets of a connection leave this host.
type way struct {
	to      conn.Snapshot // the connection, with the peer's address on the wire
	err     error         // why that address is not certain
	apart   bool          // segments of ours may be treated otherwise than the connection's
	devices []uint32      // to try, best first; 0: whatever the routing table says
}

// Sent says what is known of the way that a segment of ours has taken. The zero
// value knows nothing.
type Sent struct {
	// Certain: it left as the connection's own segments do, as far as the kernel
	// tells. Without it, silence says nothing.
	Certain bool
	// Multipath: it is uncertain because the route has several next hops.
	Multipath bool
	// Err is what kept the kernel from telling.
	Err error
}

// wayOf finds it. Where this host translates the peer's address the cached route is
// not the one that packets take: each is routed anew once it is translated, through
// no device but the one that its socket is bound to.
func (p *Prober) wayOf(ns *netns.NS, s *conn.Snapshot) way {
	// IPsec policies may select TCP, or its ports: a raw segment has neither.
	// And a flow label that the socket was given the kernel may not send with.
	w := way{to: *s, apart: s.IPsec || s.FlowLabel != 0 && !p.keepsLabels, devices: devices(s)}
	switch other, err := p.tracker.Other(ns, s.Local, s.Remote); {
	case err == nil && other != s.Remote:
		w.to.Remote, w.devices = other, []uint32{s.Ifindex}
	case err != nil && !errors.Is(err, conntrack.ErrNone):
		w.err = err
	}
	return w
}

// loopback is the index of lo in every network namespace.
const loopback = 1

// devices returns the devices to try, best first, 0 for whatever the routing
// table says.
func devices(s *conn.Snapshot) []uint32 {
	// What stays on this host needs no device to be told the way, and the
	// routes to local addresses name other devices than lo.
	if s.DstDev == 0 || s.DstDev == loopback || s.DstDev == s.Ifindex {
		return []uint32{s.Ifindex}
	}
	return []uint32{s.DstDev, s.Ifindex}
}
