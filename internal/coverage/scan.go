// SPDX-License-Identifier: Apache-2.0

package coverage

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/listeners"
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
	// found is what the first look made of it.
	found Found
}

// scan is one scan over one namespace.
type scan struct {
	kernel  Looker
	force   *loader.InForce
	cgroups *cgroups
	foreign func(path string) (bool, error)
	pace    *pace
	ns      *netns.NS
	diag    *sockdiag.Conn
	found   func(*Found) error
	// unclear is the first of the errors that left a connection's reason as the first
	// look saw it.
	unclear error
}

// run calls found for every connection of the namespace that the policy names. With
// an error some may be missing, or a reason may not be the last word.
func (s *scan) run(ctx context.Context) (err error) {
	runtime.LockOSThread() // pace counts this thread's CPU
	defer runtime.UnlockOSThread()
	s.pace.begin()
	defer s.pace.end()
	if s.diag, err = sockdiag.Dial(s.ns); err != nil {
		return err
	}
	defer s.diag.Close()
	doubtful, err := s.first(ctx)
	if len(doubtful) > 0 && ctx.Err() == nil {
		s.pace.end()
		again := sleep(ctx, doubt)
		if again == nil {
			again = s.again(ctx, doubtful)
		}
		err = errors.Join(err, again)
	}
	if err = errors.Join(err, s.unclear); err != nil {
		return fmt.Errorf("check the connections of %s: %w", s.ns, err)
	}
	return nil
}

// first looks at the connections while they are listed, a few at a time: nothing is
// kept of one that is bounded. It returns those that do not seem so. Those that
// open meanwhile may be missing, and with an error more.
func (s *scan) first(ctx context.Context) (doubtful []candidate, err error) {
	heard, err := listeners.Read(s.ns, s.diag)
	if err != nil {
		return nil, err
	}
	some := make([]candidate, 0, looks)
	flush := func() error {
		more, err := s.look(ctx, some)
		doubtful, some = append(doubtful, more...), some[:0]
		return err
	}
	n := 0
	err = s.list(func(one sockdiag.Socket) error {
		if !ended(&one) && names(s.force.Policy, &one.ID) {
			some = append(some, candidate{
				ID: one.ID, state: one.State, uid: one.UID, cgroup: one.CgroupID, directions: heard.Directions(&one.ID),
			})
		}
		if n++; len(some) == looks {
			return flush()
		} else if n%looks == 0 {
			return s.pace.breathe(ctx)
		}
		return nil
	}, conn.Established, conn.CloseWait, conn.FinWait1, conn.FinWait2)
	if ctx.Err() == nil {
		err = errors.Join(err, flush())
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

// look looks at each and tells of those that are bounded. It returns the others.
func (s *scan) look(ctx context.Context, some []candidate) (doubtful []candidate, err error) {
	var bounded []Found
	if err := s.ns.Do(func() error {
		for i := range some {
			c := &some[i]
			f, _, named, err := s.one(c, false)
			if err != nil {
				f, named = s.unseen(c) // the second look may see it
			}
			switch {
			case !named:
			case f.Reason == "":
				bounded = append(bounded, f)
			default:
				c.found = f
				doubtful = append(doubtful, *c)
			}
		}
		return nil
	}); err != nil {
		return nil, err
	}
	return doubtful, s.tell(ctx, bounded)
}

// again looks again at what did not seem bounded, and tells all. Where that fails the
// first look stands.
func (s *scan) again(ctx context.Context, list []candidate) error {
	for len(list) > 0 {
		some := list[:min(looks, len(list))]
		list = list[len(some):]
		found := make([]Found, 0, len(some))
		sharper := make(map[int]seen)
		if err := s.ns.Do(func() error {
			for i := range some {
				f, peer, named, err := s.one(&some[i], true)
				if err != nil {
					s.doubt(err)
					f, named = some[i].found, true
				}
				if !named {
					continue
				}
				if peer != nil {
					sharper[len(found)] = seen{peer, some[i].cgroup}
				}
				found = append(found, f)
			}
			return nil
		}); err != nil {
			s.doubt(err)
			found, sharper = found[:0], nil
			for i := range some {
				found = append(found, some[i].found)
			}
		}
		if err := s.sharpen(ctx, found, sharper); err != nil {
			return err
		}
		if err := s.tell(ctx, found); err != nil {
			return err
		}
	}
	return nil
}

// tell hands over what was found, and rests if it is time to.
func (s *scan) tell(ctx context.Context, list []Found) error {
	for i := range list {
		if err := s.found(&list[i]); err != nil {
			return err
		}
	}
	return s.pace.breathe(ctx)
}

// doubt notes an error that makes the scan incomplete.
func (s *scan) doubt(err error) {
	if s.unclear == nil {
		s.unclear = err
	}
}

// one looks at one connection; false: it is gone, or no policy names it. The
// calling thread is in its namespace. peer is nil where it could not be looked at.
func (s *scan) one(c *candidate, again bool) (f Found, peer *policy.Peer, named bool, err error) {
	snap, err := s.kernel.Look(c.Local, c.Remote, c.Ifindex)
	missed := errors.Is(err, loader.ErrNotFound) || errors.Is(err, loader.ErrNotConnection) || err == nil && snap.Cookie != c.Cookie
	switch {
	case missed && again:
		f, named, err = s.hidden(c)
		return f, nil, named, err
	case missed:
		f, named = s.unseen(c)
		return f, nil, named, nil
	case err != nil || !snap.State.Judgeable():
		return Found{}, nil, false, err
	}
	f, peer, named = decide(s.force, c.directions, &snap)
	return f, peer, named, nil
}

// unseen is what a look did not find.
func (s *scan) unseen(c *candidate) (Found, bool) {
	peer, direction := s.force.Policy.Choose(c.Remote, c.Local.Port(), c.directions)
	if peer == nil {
		return Found{}, false
	}
	return Found{
		ID: c.ID, State: c.state, UID: c.uid, Policy: peer.Name, Direction: direction,
		Uncertain: c.directions == policy.Both, Reason: Error,
	}, true
}

// hidden is what no look found. Mostly it has ended; where inet_diag still has it, it
// cannot be looked at.
func (s *scan) hidden(c *candidate) (Found, bool, error) {
	now, err := s.diag.Get(c.ID)
	if errors.Is(err, sockdiag.ErrGone) || err == nil && (ended(&now) || !now.State.Judgeable()) {
		return Found{}, false, nil
	}
	f, named := s.unseen(c)
	return f, named, err
}

// seen is what else is known of one that was looked at.
type seen struct {
	peer   *policy.Peer
	cgroup uint64
}

// sharpen tells apart what a look alone does not.
func (s *scan) sharpen(ctx context.Context, found []Found, by map[int]seen) error {
	for i, one := range by {
		f := &found[i]
		if f.Reason != Older && f.Reason != OptionsDrifted {
			continue
		}
		err := s.cgroups.read(ctx, s.pace)
		if err == nil {
			f.Reason, err = s.sharper(f.Reason, one)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			s.doubt(err)
		}
	}
	return nil
}

// sharper is a reason in the light of the cgroup.
func (s *scan) sharper(r Reason, one seen) (Reason, error) {
	switch outside := s.cgroups.outside(one.cgroup); {
	case r == Older && outside:
		return NotInCgroup, nil
	case r == Older && one.peer.LeaveExisting:
		return Ignored, nil
	case r == OptionsDrifted && !outside:
		path, ok := s.cgroups.paths[one.cgroup]
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
