// SPDX-License-Identifier: Apache-2.0

package prober

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/conntrack"
	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/netns"
)

// The errors that Send and Route wrap. Anything else is unexpected.
var (
	// ErrBlocked: this host refused to send. It may concern this process only
	// (an owner rule, a cgroup of its own) and says nothing about the
	// connection (kernel-facts P11).
	ErrBlocked = errors.New("probe blocked on this host")
	// ErrNoRoute: the connection has no way out of this host.
	ErrNoRoute = errors.New("no route for the connection")
	// ErrLinkDown, with ErrNoRoute: a device of the connection's is down or has no
	// carrier, and with it its routes are gone.
	ErrLinkDown = errors.New("device is down")
	// ErrUnprobeable: a connection that must not be probed this way.
	ErrUnprobeable = errors.New("connection cannot be probed")
)

// Prober sends in-path probes. Use [New].
type Prober struct {
	// keepsLabels says that the kernel sends with the flow label that a socket was
	// given, and not now and then with one of its own (kernel-facts P18).
	keepsLabels bool
	tracker     *conntrack.Tracker
}

// trackLimit is how long a probe waits for conntrack, no longer than the least time
// between two attempts. Without the answer it leaves all the same, on a way that is not
// certain.
const trackLimit = 500 * time.Millisecond

// New returns a Prober for this kernel.
func New() *Prober {
	running, _, err := kernel.Running()
	return &Prober{
		keepsLabels: err == nil && running.Before(kernel.Release{Major: 7}),
		tracker:     conntrack.New(trackLimit),
	}
}

// Send puts one keepalive-shaped segment of the connection on its way. ns is
// the namespace that s was taken in; s should be as fresh as can be.
//
// A nil error means that the kernel accepted the segment for sending, and no
// more: it may still be lost on a device without a carrier. Nothing was sent where
// the error wraps ErrUnprobeable, ErrNoRoute (and ErrLinkDown, where that is why) or ErrBlocked.
func (p *Prober) Send(ns *netns.NS, s *conn.Snapshot) (Sent, error) {
	var sent Sent
	err := p.on(ns, s, func(k *socket, s *conn.Snapshot) error {
		sent = k.sent
		return k.send(s)
	})
	if err != nil {
		return Sent{}, fmt.Errorf("send probe of %s: %w", s.ID, err)
	}
	return sent, nil
}

// Route asks the kernel whether it has a route for the connection, with its
// source, device and mark, and puts nothing on the wire. It returns nil if
// there is one. The errors are those of Send, though no error of Route speaks
// of what the output hooks would do with a packet.
func (p *Prober) Route(ns *netns.NS, s *conn.Snapshot) error {
	if err := p.on(ns, s, func(*socket, *conn.Snapshot) error { return nil }); err != nil {
		return fmt.Errorf("look up route of %s: %w", s.ID, err)
	}
	return nil
}

// on runs act on a raw socket that follows the connection.
func (p *Prober) on(ns *netns.NS, s *conn.Snapshot, act func(*socket, *conn.Snapshot) error) error {
	if err := probeable(s); err != nil {
		return err
	}
	if ns.Inode() != s.Netns {
		return fmt.Errorf("%w: it is not in %s", ErrUnprobeable, ns)
	}
	return ns.Do(func() error {
		var err error
		w := p.wayOf(ns, s)
		for _, dev := range w.devices {
			// A cached route can be out of date, and its device gone. The
			// kernel looks for another one then, and so must we.
			if err = w.through(s, dev, act); !errors.Is(err, ErrNoRoute) {
				return err
			}
			// Or the table has no way by it but for the connection's own.
			w.apart = w.apart || s.DstDevUp
		}
		if linkDown(s.Ifindex) || linkDown(s.SrcDev) {
			err = fmt.Errorf("%w: %w", ErrLinkDown, err)
		}
		return err
	})
}

// through runs act on a raw socket that is bound to dev, 0 for any.
func (w *way) through(s *conn.Snapshot, dev uint32, act func(*socket, *conn.Snapshot) error) error {
	hop, err := hopOf(&w.to, dev)
	if err != nil && dev != 0 && s.Remote.Addr().Is4() {
		return err
	}
	k, err := open(s, dev)
	if err != nil {
		return err
	}
	defer k.close()
	k.sent = Sent{
		Certain:   hop == hopSame && !w.apart && w.err == nil,
		Multipath: hop == hopSeveral, Err: w.err,
	}
	return act(k, s)
}

// probeable refuses what a raw segment could harm or cannot reach, with the
// reason (kernel-facts C6, P7).
func probeable(s *conn.Snapshot) error {
	refuse := func(why string) error { return fmt.Errorf("%w: %s", ErrUnprobeable, why) }
	switch local, remote := s.Local.Addr(), s.Remote.Addr(); {
	case !s.State.Judgeable():
		return refuse("state " + s.State.String())
	case s.MPTCP:
		return refuse("it is an MPTCP subflow")
	case s.MD5OrAO:
		return refuse("its segments are signed (TCP-MD5 or TCP-AO)")
	case s.Repair:
		return refuse("it is in repair mode")
	case s.Local.Port() == 0 || s.Remote.Port() == 0:
		return refuse("a port is zero")
	case !unicast(s.Local) || !unicast(s.Remote) || local.Is4() != remote.Is4():
		return refuse("an address is invalid")
	}
	return nil
}

// edge translates an errno into the package's errors and keeps it wrapped.
func edge(doing string, err error) error {
	var errno unix.Errno
	if !errors.As(err, &errno) {
		return fmt.Errorf("%s: %w", doing, err)
	}
	switch errno {
	case unix.EPERM, unix.EACCES:
		return fmt.Errorf("%w: %s: %w", ErrBlocked, doing, err)
	case unix.ENETUNREACH, unix.EHOSTUNREACH, unix.ENETDOWN, unix.ENODEV, unix.ENXIO, unix.EADDRNOTAVAIL:
		return fmt.Errorf("%w: %s: %w", ErrNoRoute, doing, err)
	}
	return fmt.Errorf("%s: %w", doing, err)
}
