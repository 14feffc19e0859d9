// SPDX-License-Identifier: Apache-2.0

package sockets

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/sockhealth/sockhealth/internal/conn"
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
}

// Sockets reaches the sockets of every namespace it is given. Use New.
type Sockets struct {
	programs Programs
}

// New returns the face of these programs.
func New(p Programs) *Sockets { return &Sockets{programs: p} }

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

// Find returns the connections with this local address, or this cookie; the one
// not given is the zero value. The connections of one listener share their local
// address. It takes one dump of the namespace's sockets.
func (s *Sockets) Find(ns *netns.NS, local netip.AddrPort, cookie uint64) ([]conn.Snapshot, error) {
	c, err := sockdiag.Dial(ns)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	var ids []conn.ID
	// What carries, or may still carry, a connection.
	states := sockdiag.States(conn.Established, conn.FinWait1, conn.FinWait2, conn.CloseWait, conn.LastAck, conn.Closing)
	err = c.List(sockdiag.Filter{States: states, LocalPort: local.Port()}, func(have sockdiag.Socket) error {
		if (!local.IsValid() || have.Local == local) && (cookie == 0 || have.Cookie == cookie) {
			ids = append(ids, have.ID)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	var out []conn.Snapshot
	for _, id := range ids {
		snap, err := s.lookOnce(ns, id)
		if errors.Is(err, ErrGone) {
			continue
		}
		if err != nil {
			return nil, err
		}
		out = append(out, snap)
	}
	return out, nil
}

// lookOnce runs the look-up program on the device of id.
func (s *Sockets) lookOnce(ns *netns.NS, id conn.ID) (snap conn.Snapshot, err error) {
	err = ns.Do(func() (err error) {
		snap, err = s.programs.Look(id.Local, id.Remote, id.Ifindex)
		return err
	})
	if errors.Is(err, loader.ErrNotFound) || errors.Is(err, loader.ErrNotConnection) {
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

// Scan calls fn for every connection of the namespace until it returns an
// error, which Scan returns.
func (s *Sockets) Scan(ns *netns.NS, fn func(conn.Snapshot) error) error {
	return ns.Do(func() error { return s.programs.Scan(fn) })
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

// Destroy closes exactly the socket that id names, by tuple, device, cookie and
// namespace, and returns when the kernel has acknowledged it. The application
// gets ECONNABORTED from a read that waits or comes next, a reachable peer gets
// RST. Errors wrap ErrGone where there was no such socket any more, and those
// of package sockdiag where the kernel refuses.
func (s *Sockets) Destroy(ns *netns.NS, id conn.ID) error {
	c, err := sockdiag.Dial(ns)
	if err != nil {
		return err
	}
	defer c.Close()
	err = c.Destroy(id)
	// Refused: it went on to a state in which it has no application any more.
	if errors.Is(err, sockdiag.ErrGone) || errors.Is(err, sockdiag.ErrRefused) {
		return fmt.Errorf("close %s: %w", id, ErrGone)
	}
	return err
}
