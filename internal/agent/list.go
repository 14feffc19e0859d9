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
// passed over. It looks once at every socket there is; fn runs inside the
// namespace and must not keep the snapshot's address.
//
// The error wraps loader.ErrUnsupported where the kernel cannot walk sockets.
func (a *Agent) List(namespaces []*netns.NS, fn func(s *conn.Snapshot, peer *policy.Peer) error) error {
	for _, ns := range namespaces {
		if !a.covers(ns) {
			continue
		}
		err := a.Sockets.Scan(ns, func(s conn.Snapshot) error {
			peer, unmanaged := a.peer(&s)
			if unmanaged != "" {
				return nil
			}
			return fn(&s, peer)
		})
		if err != nil {
			return fmt.Errorf("list sockets of %s: %w", ns, err)
		}
	}
	return nil
}
