// SPDX-License-Identifier: Apache-2.0

package sockets

import (
	"errors"
	"fmt"
	"net/netip"

	nl "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/conntrack"
	"github.com/sockhealth/sockhealth/internal/netns"
)

// LocalLeg reports whether a proxy of this namespace, and not the peer, is at the
// other end of a connection, so that its answers are no sign of the peer's life:
// address translation leads to an address of this namespace (kernel-facts P10), or
// a socket of this namespace has the peer's address although the namespace has not
// (a transparent proxy). A peer that has an address of this namespace is no proxy.
//
// It takes constant time: one question to conntrack where that is there, one look,
// and one route where one of them found something. Where conntrack is held up it waits
// for up to trackLimit, and the error wraps conntrack.ErrHeldUp.
func (s *Sockets) LocalLeg(ns *netns.NS, of *conn.Snapshot) (local bool, err error) {
	err = ns.Do(func() (err error) { // once for all that is asked
		local, err = s.localLeg(ns, of)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("ask who answers %s: %w", of.ID, err)
	}
	return local, nil
}

func (s *Sockets) localLeg(ns *netns.NS, of *conn.Snapshot) (bool, error) {
	other, err := s.tracker.Other(ns, of.Local, of.Remote)
	switch {
	case errors.Is(err, conntrack.ErrNone):
	case err != nil:
		return false, err
	case other != of.Remote:
		return isLocal(ns, other.Addr())
	}
	_, err = s.lookOnce(ns, conn.ID{Local: of.Remote, Remote: of.Local})
	if errors.Is(err, ErrGone) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	own, err := isLocal(ns, of.Remote.Addr())
	return !own, err
}

// isLocal reports whether packets to an address stay in the namespace. Routing
// rules for marked packets, as transparent proxies have them, do not count.
func isLocal(ns *netns.NS, a netip.Addr) (local bool, err error) {
	err = ns.Do(func() error {
		routes, err := nl.RouteGet(a.AsSlice())
		local = err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL
		switch {
		case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.EINVAL), errors.Is(err, unix.EACCES):
			return nil // none leads there
		}
		return err
	})
	return local, err
}
