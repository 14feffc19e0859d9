// SPDX-License-Identifier: Apache-2.0

package sockets

import (
	"fmt"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/listeners"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/policy"
)

// Directions returns what tells who may have opened a connection that nobody saw open, by
// the listeners that its namespace has now (package listeners). It takes a dump of those.
// The error wraps sockdiag.ErrUnsupported where the kernel has no inet_diag.
func (s *Sockets) Directions(ns *netns.NS) (func(*conn.ID) policy.Directions, error) {
	c, err := s.dial(ns)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	heard, err := listeners.Read(ns, c)
	if err != nil {
		return nil, fmt.Errorf("ask who opened connections of netns %d: %w", ns.Inode(), err)
	}
	return heard.Directions, nil
}
