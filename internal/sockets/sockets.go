// SPDX-License-Identifier: Apache-2.0

package sockets

import (
	"errors"
	"fmt"
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
// cookie. It takes constant time where the socket is there and not bound to a
// device, else one dump of the namespace's sockets. Errors wrap ErrGone.
func (s *Sockets) Get(ns *netns.NS, local, remote netip.AddrPort) (conn.Snapshot, error) {
	return s.look(ns, conn.ID{Local: local, Remote: remote})
}

// Again looks once more at the socket that an earlier look found; its cookie
// must be the same. Cost and errors are those of Get.
func (s *Sockets) Again(ns *netns.NS, id conn.ID) (conn.Snapshot, error) {
	if id.Cookie == 0 {
		return conn.Snapshot{}, fmt.Errorf("look at %s: no cookie", id)
	}
	return s.look(ns, id)
}

// Find returns the connection with this local address, or this cookie; the one
// not given is the zero value. Where several connections share the local
// address, as those of one listener do, it is ErrAmbiguous. It takes one dump of
// the namespace's sockets. Errors wrap ErrGone where there is none.
func (s *Sockets) Find(ns *netns.NS, local netip.AddrPort, cookie uint64) (conn.Snapshot, error) {
	ids, err := list(ns, local.Port(), 0, func(id conn.ID) bool {
		return (!local.IsValid() || id.Local == local) && (cookie == 0 || id.Cookie == cookie)
	})
	if err != nil {
		return conn.Snapshot{}, err
	}
	switch len(ids) {
	case 0:
		return conn.Snapshot{}, fmt.Errorf("find socket %s cookie %d: %w", local, cookie, ErrGone)
	case 1:
		return s.look(ns, ids[0])
	}
	return conn.Snapshot{}, fmt.Errorf("find socket %s: %w: %d connections", local, ErrAmbiguous, len(ids))
}

// ErrAmbiguous says that a local address alone does not name one connection.
var ErrAmbiguous = errors.New("address names several connections")

// look returns the socket if it is what id names; a zero cookie there matches
// every one.
func (s *Sockets) look(ns *netns.NS, id conn.ID) (conn.Snapshot, error) {
	snap, err := s.lookOnce(ns, id)
	if err == nil || !errors.Is(err, ErrGone) {
		return snap, err
	}
	// A socket bound to a device is found only on that device, and behind
	// a connection that ended stands its listener. inet_diag knows both.
	ids, err := list(ns, id.Local.Port(), id.Remote.Port(), func(have conn.ID) bool {
		return have.Local == id.Local && have.Remote == id.Remote &&
			have.Ifindex != id.Ifindex && (id.Cookie == 0 || have.Cookie == id.Cookie)
	})
	if err != nil {
		return conn.Snapshot{}, err
	}
	if len(ids) == 0 {
		return conn.Snapshot{}, fmt.Errorf("look at %s: %w", id, ErrGone)
	}
	return s.lookOnce(ns, ids[0])
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

// connections are the states that list returns: those that carry, or may still
// carry, a connection.
const connections = 1<<conn.Established | 1<<conn.FinWait1 | 1<<conn.FinWait2 |
	1<<conn.CloseWait | 1<<conn.LastAck | 1<<conn.Closing

// list returns the connections that match; ports of 0 match every one.
func list(ns *netns.NS, localPort, remotePort uint16, match func(conn.ID) bool) ([]conn.ID, error) {
	c, err := sockdiag.Dial(ns)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	var ids []conn.ID
	filter := sockdiag.Filter{States: connections, LocalPort: localPort, RemotePort: remotePort}
	err = c.List(filter, func(have sockdiag.Socket) error {
		if match(have.ID) {
			ids = append(ids, have.ID)
		}
		return nil
	})
	return ids, err
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
	if err := c.Destroy(id); errors.Is(err, sockdiag.ErrGone) {
		return fmt.Errorf("close %s: %w", id, ErrGone)
	} else if err != nil {
		return err
	}
	return nil
}
