// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/policy"
)

// List calls fn for every managed connection of these namespaces until it
// returns an error, which List returns: those that carry a record of a policy
// in force. peer is its entry. Namespaces that the agent does not act in are
// passed over. It looks once at every socket there is, and waits for one that an
// application keeps locked no longer than Scan does: that is an error.
//
// The error wraps loader.ErrUnsupported where the kernel cannot walk sockets.
func (a *Agent) List(namespaces []*netns.NS, fn func(s *conn.Snapshot, peer *policy.Peer) error) error {
	for _, ns := range namespaces {
		if !a.covers(ns) {
			continue
		}
		found, err := a.Scan(ns, func(s *conn.Snapshot) bool {
			_, unmanaged := a.peer(s)
			return unmanaged == ""
		})
		if err != nil {
			return fmt.Errorf("list sockets of %s: %w", ns, err)
		}
		for i := range found {
			peer, unmanaged := a.peer(&found[i])
			if unmanaged != "" {
				continue // of a policy that is no longer in force
			}
			if err := fn(&found[i], peer); err != nil {
				return fmt.Errorf("list sockets of %s: %w", ns, err)
			}
		}
	}
	return nil
}
