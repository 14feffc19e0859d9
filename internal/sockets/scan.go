// SPDX-License-Identifier: Apache-2.0

package sockets

import (
	"errors"
	"fmt"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/sockdiag"
)

// Scan calls fn for every connection of the namespace until it returns an
// error, which Scan returns. fn runs on a thread inside the namespace.
//
// It takes one walk. Before Linux 5.11, which cannot read records in a walk, it
// takes one dump by inet_diag and a look at each connection. Where the kernel has
// neither, the error wraps loader.ErrUnsupported and sockdiag.ErrUnsupported.
func (s *Sockets) Scan(ns *netns.NS, fn func(conn.Snapshot) error) error {
	called := false
	err := ns.Do(func() error {
		return s.programs.Scan(func(snap conn.Snapshot) error {
			called = true
			return fn(snap)
		})
	})
	if called || !errors.Is(err, loader.ErrUnsupported) {
		return err
	}
	ids, lerr := s.listed(ns, 0, func(*conn.ID) bool { return true })
	if errors.Is(lerr, sockdiag.ErrUnsupported) {
		return fmt.Errorf("list sockets by scan: %w; by inet_diag: %w", err, lerr)
	}
	if lerr != nil {
		return lerr
	}
	return ns.Do(func() error {
		for _, id := range ids {
			snap, err := s.programs.Look(id.Local, id.Remote, id.Ifindex)
			if isGone(err) || err == nil && snap.Cookie != id.Cookie {
				continue // it ended meanwhile
			}
			if err != nil {
				return err
			}
			if err := fn(snap); err != nil {
				return err
			}
		}
		return nil
	})
}

// isGone reports whether a look found no such connection.
func isGone(err error) bool {
	return errors.Is(err, loader.ErrNotFound) || errors.Is(err, loader.ErrNotConnection)
}
