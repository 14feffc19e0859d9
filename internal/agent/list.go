// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/policy"
)

// List calls fn for every managed connection of a namespace: those that carry a
// record of a policy in force. peer is its entry. A namespace that the agent does not
// act in has none. It looks once at every socket there is, and waits for one that an
// application keeps locked no longer than Scan does: that is an error, and fn may
// still be called afterwards.
//
// The error wraps loader.ErrUnsupported where the kernel cannot walk sockets.
func (a *Agent) List(ns *netns.NS, fn func(s *conn.Snapshot, peer *policy.Peer)) error {
	if !a.covers(ns) {
		return nil
	}
	_, err := a.Scan(ns, func(s *conn.Snapshot) bool {
		if peer := managed(a.Kernel.InForce(), s); peer != nil {
			fn(s, peer)
		}
		return false // nothing is kept
	})
	if err != nil {
		return fmt.Errorf("list sockets of %s: %w", ns, err)
	}
	return nil
}
