// SPDX-License-Identifier: Apache-2.0

package sockets

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/conntrack"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/sockdiag"
)

// ErrGone says that no connection has the identity asked for: it ended, or its
// tuple belongs to another cookie, a listener or TIME_WAIT.
var ErrGone = errors.New("socket is gone")

// Programs are the BPF programs that look and walk, in the calling thread's
// namespace (loader.Programs).
type Programs interface {
	Look(local, remote netip.AddrPort, ifindex uint32) (conn.Snapshot, error)
	Scan(fn func(conn.Snapshot) error) error
	Provoke(cookies []uint64) ([]uint64, error)
	Calm(cookies []uint64) ([]uint64, error)
	Destroy(named []loader.Condemned) []error
}

// diag is a connection to inet_diag (sockdiag.Conn).
type diag interface {
	List(f sockdiag.Filter, fn func(sockdiag.Socket) error) error
	Destroy(id conn.ID) error
	CanDestroy() error
	Close() error
}

// Sockets reaches the sockets of every namespace it is given. Use New.
type Sockets struct {
	programs Programs
	dial     func(*netns.NS) (diag, error)
	closes   closes
	tracker  *conntrack.Tracker
}

// trackLimit is how long LocalLeg waits for conntrack, which nobody else waits behind.
const trackLimit = 5 * time.Second

// New returns the face of these programs.
func New(p Programs) *Sockets {
	return &Sockets{programs: p, dial: func(ns *netns.NS) (diag, error) { return sockdiag.Dial(ns) },
		tracker: conntrack.New(trackLimit)}
}

// Get returns the connection with this local and remote address, whatever its
// cookie. It takes constant time; where nothing is found it takes one look more
// for each device of the namespace. Errors wrap ErrGone.
func (s *Sockets) Get(ns *netns.NS, local, remote netip.AddrPort) (conn.Snapshot, error) {
	id := conn.ID{Local: local, Remote: remote}
	snap, err := s.lookOnce(ns, id)
	if err == nil || !errors.Is(err, ErrGone) {
		return snap, err
	}
	// A socket bound to a device is found only on that device.
	devices, derr := deviceIndexes(ns)
	if derr != nil {
		return conn.Snapshot{}, derr
	}
	for _, id.Ifindex = range devices {
		if snap, err := s.lookOnce(ns, id); err == nil && snap.Ifindex == id.Ifindex {
			return snap, nil
		}
	}
	return conn.Snapshot{}, err
}

// deviceIndexes lists the devices of a namespace.
func deviceIndexes(ns *netns.NS) ([]uint32, error) {
	var out []uint32
	err := ns.Do(func() error {
		devices, err := net.Interfaces()
		for _, d := range devices {
			out = append(out, uint32(d.Index))
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list devices of %s: %w", ns, err)
	}
	return out, nil
}

// Again looks once more at the socket that an earlier look found, in constant
// time; its cookie must be the same. Errors wrap ErrGone.
func (s *Sockets) Again(ns *netns.NS, id conn.ID) (conn.Snapshot, error) {
	if id.Cookie == 0 {
		return conn.Snapshot{}, fmt.Errorf("look at %s: no cookie", id)
	}
	return s.lookOnce(ns, id)
}

// lookOnce runs the look-up program on the device of id.
func (s *Sockets) lookOnce(ns *netns.NS, id conn.ID) (snap conn.Snapshot, err error) {
	err = ns.Do(func() (err error) {
		snap, err = s.programs.Look(id.Local, id.Remote, id.Ifindex)
		return err
	})
	if isGone(err) {
		return conn.Snapshot{}, fmt.Errorf("%w: %w", ErrGone, err)
	}
	if err != nil {
		return conn.Snapshot{}, err
	}
	switch {
	case snap.State == conn.Listen, snap.State == conn.Close:
		return conn.Snapshot{}, fmt.Errorf("look at %s: %w: its address belongs to a socket in %s", id, ErrGone, snap.State)
	case id.Cookie != 0 && snap.Cookie != id.Cookie:
		return conn.Snapshot{}, fmt.Errorf("look at %s: %w: its address belongs to cookie %d", id, ErrGone, snap.Cookie)
	}
	return snap, nil
}

// Provoke makes the kernel send keepalives on the sockets with these cookies,
// until Calm. Both return the cookies of those they reached; one that is gone,
// or carries no record, is not among them. Each is one walk of the namespace.
func (s *Sockets) Provoke(ns *netns.NS, cookies []uint64) (reached []uint64, err error) {
	err = ns.Do(func() error {
		reached, err = s.programs.Provoke(cookies)
		return err
	})
	return reached, err
}

// Calm puts back what Provoke changed.
func (s *Sockets) Calm(ns *netns.NS, cookies []uint64) (reached []uint64, err error) {
	err = ns.Do(func() error {
		reached, err = s.programs.Calm(cookies)
		return err
	})
	return reached, err
}
