// SPDX-License-Identifier: Apache-2.0

package coverage

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/policy"
	"github.com/sockhealth/sockhealth/internal/sockdiag"
)

const (
	// looks is how many connections are looked at in one go.
	looks = 128
	// doubt is how long after the first look a connection is looked at again that
	// did not seem bounded: what was under way is over by then.
	doubt = 100 * time.Millisecond
)

// candidate is a connection that the policy may name.
type candidate struct {
	conn.ID
	state  conn.State
	uid    uint32
	cgroup uint64
	// directions are those that the listeners tell.
	directions policy.Directions
}

// scan is one scan over one namespace.
type scan struct {
	kernel  Looker
	force   *loader.InForce
	cgroups func() (*cgroups, error) // read when they are needed
	foreign func(path string) (bool, error)
	pace    *pace
	ns      *netns.NS
	diag    *sockdiag.Conn
	found   func(*Found) error
}

// run calls found for every connection of the namespace that the policy names.
func (s *scan) run(ctx context.Context) (err error) {
	runtime.LockOSThread() // pace counts this thread's CPU
	defer runtime.UnlockOSThread()
	if err := s.pace.begin(); err != nil {
		return err
	}
	defer s.pace.end()
	if s.diag, err = sockdiag.Dial(s.ns); err != nil {
		return err
	}
	defer s.diag.Close()
	doubtful, err := s.first(ctx)
	if err == nil && len(doubtful) > 0 {
		s.pace.end()
		if err = sleep(ctx, doubt); err == nil {
			_, err = s.look(ctx, doubtful, true)
		}
	}
	if err != nil {
		return fmt.Errorf("check the connections of %s: %w", s.ns, err)
	}
	return nil
}

// first looks at the connections while they are listed, a few at a time: nothing is
// kept of one that is bounded. It returns those that do not seem so. Those that
// open meanwhile may be missing.
func (s *scan) first(ctx context.Context) (doubtful []candidate, err error) {
	lo, hi, err := s.ports()
	if err != nil {
		return nil, err
	}
	heard := newListeners(lo, hi)
	if err := s.list(heard.add, conn.Listen); err != nil {
		return nil, err
	}
	some := make([]candidate, 0, looks)
	flush := func() error {
		more, err := s.look(ctx, some, false)
		doubtful, some = append(doubtful, more...), some[:0]
		return err
	}
	n := 0
	err = s.list(func(one sockdiag.Socket) error {
		if !ended(&one) && names(s.force.Policy, &one.ID) {
			some = append(some, candidate{
				ID: one.ID, state: one.State, uid: one.UID, cgroup: one.CgroupID, directions: heard.directions(&one.ID),
			})
		}
		if n++; len(some) == looks {
			return flush()
		} else if n%looks == 0 {
			return s.pace.breathe(ctx)
		}
		return nil
	}, conn.Established, conn.CloseWait, conn.FinWait1, conn.FinWait2)
	if err == nil {
		err = flush()
	}
	return doubtful, err
}

// ended reports whether no socket is left: what the kernel keeps in its place until
// the peer has closed too, is told as FIN_WAIT2 as well, and has no options.
func ended(one *sockdiag.Socket) bool { return one.Timer == sockdiag.TimerTimeWait }

// list lists the sockets in some states. A list that changed while it was read may
// lack some or have them twice, as any may.
func (s *scan) list(fn func(sockdiag.Socket) error, states ...conn.State) error {
	err := s.diag.List(sockdiag.Filter{States: sockdiag.States(states...)}, fn)
	if errors.Is(err, sockdiag.ErrInterrupted) {
		return nil
	}
	return err
}

// ports returns the range that a client's port is from.
func (s *scan) ports() (lo, hi uint16, err error) {
	const file = "/proc/sys/net/ipv4/ip_local_port_range"
	err = s.ns.Do(func() error {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if _, err = fmt.Sscan(string(text), &lo, &hi); err != nil {
			return fmt.Errorf("read %s: %w", file, err)
		}
		return nil
	})
	return lo, hi, err
}

// look looks at each and tells what it finds. The first time it returns those that
// do not seem bounded, and tells nothing of them.
func (s *scan) look(ctx context.Context, list []candidate, again bool) (doubtful []candidate, err error) {
	for len(list) > 0 {
		some := list[:min(looks, len(list))]
		list = list[len(some):]
		var found []Found
		err := s.ns.Do(func() error {
			for i := range some {
				f, named, err := s.one(&some[i], again)
				switch {
				case err != nil:
					return err
				case !named:
				case f.Reason != "" && !again:
					doubtful = append(doubtful, some[i])
				default:
					found = append(found, f)
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		for i := range found {
			if err := s.found(&found[i]); err != nil {
				return nil, err
			}
		}
		if err := s.pace.breathe(ctx); err != nil {
			return nil, err
		}
	}
	return doubtful, nil
}

// one looks at one connection; false: it is gone, or no policy names it. The
// calling thread is in its namespace.
func (s *scan) one(c *candidate, again bool) (Found, bool, error) {
	snap, err := s.kernel.Look(c.Local, c.Remote, c.Ifindex)
	missed := errors.Is(err, loader.ErrNotFound) || errors.Is(err, loader.ErrNotConnection) || err == nil && snap.Cookie != c.Cookie
	if missed {
		return s.hidden(c, again)
	}
	if err != nil {
		return Found{}, false, err
	}
	if !snap.State.Judgeable() {
		return Found{}, false, nil
	}
	f, peer, ok := decide(s.force, c.directions, &snap)
	if ok && again {
		f.Reason, err = s.sharpen(f.Reason, peer, c.cgroup)
	}
	return f, ok, err
}

// hidden is what the look did not find. Mostly it has ended; where inet_diag
// still has it, it cannot be looked at.
func (s *scan) hidden(c *candidate, again bool) (Found, bool, error) {
	peer, direction := choose(s.force.Policy, &c.ID, c.directions)
	if peer == nil {
		return Found{}, false, nil
	}
	f := Found{
		ID: c.ID, State: c.state, UID: c.uid, Policy: peer.Name, Direction: direction,
		Uncertain: c.directions == policy.Both, Reason: Error,
	}
	if !again {
		return f, true, nil
	}
	now, err := s.diag.Get(c.ID)
	if errors.Is(err, sockdiag.ErrGone) || err == nil && (ended(&now) || !now.State.Judgeable()) {
		return Found{}, false, nil
	}
	return f, err == nil, err
}

// sharpen tells apart what a look alone does not.
func (s *scan) sharpen(r Reason, peer *policy.Peer, cgroup uint64) (Reason, error) {
	if r != Older && r != OptionsDrifted {
		return r, nil
	}
	groups, err := s.cgroups()
	if err != nil {
		return r, err
	}
	switch outside := groups.outside(cgroup); {
	case r == Older && outside:
		return NotInCgroup, nil
	case r == Older && peer.LeaveExisting:
		return Ignored, nil
	case r == OptionsDrifted && !outside:
		path, ok := groups.paths[cgroup]
		if !ok {
			return r, nil
		}
		if others, err := s.foreign(path); err != nil || !others {
			return r, err
		}
		return Foreign, nil
	}
	return r, nil
}

// Looker looks at sockets by tuple (loader.Programs).
type Looker interface {
	Look(local, remote netip.AddrPort, ifindex uint32) (conn.Snapshot, error)
}
