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

// Destroy closes exactly the socket that id names, by tuple, device, cookie and
// namespace, and returns when the kernel has acknowledged it. The application
// gets ECONNABORTED from a read that waits or comes next, a reachable peer gets
// RST.
//
// inet_diag does it, in constant time. Where the kernel has none, or one that
// cannot destroy, a walk over the namespace does (loader.Programs.Destroy), which
// waits where an application holds the lock of a socket.
//
// Errors wrap ErrGone where there was no such socket any more, and those of
// package sockdiag where the kernel refuses: sockdiag.ErrUnsupported, and
// loader.ErrUnsupported with it, where it can do it neither way.
func (s *Sockets) Destroy(ns *netns.NS, id conn.ID) error {
	err := s.destroyByDiag(ns, id)
	switch {
	case errors.Is(err, sockdiag.ErrGone), errors.Is(err, sockdiag.ErrRefused):
		// Refused: it went on to a state in which it has no application any more.
		return fmt.Errorf("close %s: %w", id, ErrGone)
	case errors.Is(err, sockdiag.ErrUnsupported):
		return s.destroyByWalk(ns, id, err)
	}
	return err
}

func (s *Sockets) destroyByDiag(ns *netns.NS, id conn.ID) error {
	c, err := s.dial(ns)
	if err != nil {
		return err
	}
	defer c.Close()
	return c.Destroy(id)
}

// CanDestroy returns nil where Destroy has a way to close sockets of this
// namespace; walk is why a walk is none, nil where it is one.
func (s *Sockets) CanDestroy(ns *netns.NS, walk error) error {
	if walk == nil {
		return nil
	}
	c, err := s.dial(ns)
	if err == nil {
		err = c.CanDestroy()
		_ = c.Close()
	}
	if err != nil {
		return fmt.Errorf("dead connections are not closed: by inet_diag: %w; by bpf_destroy: %w", err, walk)
	}
	return nil
}

// walksForOne is how often a walk may pass by a socket that is there.
const walksForOne = 2

// destroyByWalk does what inet_diag could not, for the reason given. That a walk
// has not met the socket is believed only where a look does not find it either.
func (s *Sockets) destroyByWalk(ns *netns.NS, id conn.ID, reason error) error {
	var err error
	for range walksForOne {
		err = s.closes.join(ns.Inode(), id, func(named []loader.Condemned) []error { return s.walkToClose(ns, named) })
		if err == nil {
			return nil
		}
		if !errors.Is(err, loader.ErrNotFound) {
			break
		}
		have, lookErr := s.lookOnce(ns, id)
		if errors.Is(lookErr, ErrGone) || lookErr == nil && (!have.State.Judgeable() || have.Orphan) {
			return fmt.Errorf("%w: %w", ErrGone, err)
		}
	}
	return fmt.Errorf("close by inet_diag: %w; by bpf_destroy: %w", reason, err)
}

// walkToClose closes several by one walk.
func (s *Sockets) walkToClose(ns *netns.NS, named []loader.Condemned) (errs []error) {
	err := ns.Do(func() error {
		errs = s.programs.Destroy(named)
		return nil
	})
	if err != nil {
		errs = make([]error, len(named))
		for i := range errs {
			errs[i] = err
		}
	}
	return errs
}
