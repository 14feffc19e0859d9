// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/netns"
)

// Kernel finds and guards connections (loader.Programs).
type Kernel interface {
	SurveyWindows() (loader.Survey, error)
	Guard(interval time.Duration, fn func(loader.Guarded) error) error
	InForce() *loader.InForce
}

// Namespaces are those that the node has now. The caller closes the handles.
type Namespaces interface {
	All() []*netns.NS
}

// Config is what New needs. Every field but Seen is required.
type Config struct {
	Kernel     Kernel
	Namespaces Namespaces
	Log        *slog.Logger
	// Seen hears of every namespace with a window that is shut; nil: nobody asks. It
	// must not block.
	Seen func(inode uint32)
}

const (
	// shortest and longest bound the time between two passes. A user timeout below
	// three times the shortest is not waited for; one below three times the longest
	// that only a connection has may pass before a round has seen it.
	shortest, longest = 250 * time.Millisecond, time.Second
	// passLimit is how long a round waits for a pass: one that an application holds
	// up, which keeps a socket locked, goes on alone.
	passLimit = 500 * time.Millisecond
)

// Guard makes rounds. Use New.
type Guard struct {
	Config

	mu      sync.Mutex
	running map[uint32]bool              // passes that have not come to their end, by namespace
	guarded map[uint32]map[uint32]uint64 // connections by namespace and policy
	status  Status

	missed map[uint32]uint32 // namespaces out of reach in the last round; Run's alone
}

// Status says how it goes.
type Status struct {
	Rounds   int
	Interval time.Duration     // from one round to the next
	Guarded  map[uint32]uint64 // connections guarded now, by their policy's id
	Err      error             // why the last round was not complete
}

// New returns a guard that has done nothing yet.
func New(c Config) *Guard {
	return &Guard{Config: c, running: make(map[uint32]bool), guarded: make(map[uint32]map[uint32]uint64)}
}

// Status returns how it goes.
func (g *Guard) Status() Status {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.status
	s.Guarded = make(map[uint32]uint64)
	for _, policies := range g.guarded {
		for id, n := range policies {
			s.Guarded[id] += n
		}
	}
	return s
}

// Run makes rounds until ctx ends, whose error it does not return. The error wraps
// loader.ErrUnsupported where this kernel cannot guard.
func (g *Guard) Run(ctx context.Context) error {
	for {
		began := time.Now()
		wait, err := g.round(ctx)
		if err != nil {
			return err
		}
		took := time.Since(began)
		timer := time.NewTimer(max(wait-took, took)) // half a processor at most, whatever the node
		select {
		case <-ctx.Done():
			timer.Stop()
			_, err := g.round(context.WithoutCancel(ctx)) // peers that read by now
			return err
		case <-timer.C:
		}
	}
}

// round surveys the node and passes over the namespaces where there is something to
// guard; it returns the time from its beginning to the next.
func (g *Guard) round(ctx context.Context) (time.Duration, error) {
	survey, err := g.Kernel.SurveyWindows()
	if errors.Is(err, loader.ErrUnsupported) {
		return 0, err
	}
	every := g.every(survey.Shortest)
	if err == nil {
		g.forget(survey.Shut)
	}
	if len(survey.Shut) > 0 {
		err = errors.Join(err, g.passes(ctx, survey.Shut, every))
	}
	g.finish(every, err)
	return every, nil
}

// every is a third of the shortest user timeout that is in force, or that the policy
// would put in force on a connection that opens now.
func (g *Guard) every(least time.Duration) time.Duration {
	if force := g.Kernel.InForce(); force != nil {
		for i := range force.Policy.Peers {
			if ut := force.Policy.Peers[i].Options.UserTimeout; least == 0 || ut < least {
				least = ut
			}
		}
	}
	if least == 0 {
		return longest
	}
	return min(max(least/3, shortest), longest)
}

// passes passes over the namespaces that are in shut, all at a time, and waits no
// longer than passLimit.
func (g *Guard) passes(ctx context.Context, shut map[uint32]uint32, every time.Duration) error {
	missing := maps.Clone(shut)
	var errs []error
	done := make(chan error, len(shut)) // also where nobody waits any more
	started := 0
	for _, ns := range g.Namespaces.All() {
		inode := ns.Inode()
		if _, ok := missing[inode]; !ok || ctx.Err() != nil {
			_ = ns.Close()
			continue
		}
		delete(missing, inode)
		if !g.begin(inode) {
			_ = ns.Close()
			errs = append(errs, errHeldUp)
			continue
		}
		started++
		go func() { done <- g.pass(ns, every) }()
	}
	if err := g.outOfReach(missing); err != nil {
		errs = append(errs, err)
	}
	limit := time.NewTimer(passLimit)
	defer limit.Stop()
	for range started {
		select {
		case err := <-done:
			errs = append(errs, err)
		case <-limit.C:
			return errors.Join(append(errs, errHeldUp)...)
		}
	}
	return errors.Join(errs...)
}

// outOfReach has it heard that there are namespaces of which no handle is known. One of
// which there still is none in the next round is an error.
func (g *Guard) outOfReach(missing map[uint32]uint32) error {
	n := 0
	for inode := range missing {
		if _, again := g.missed[inode]; again {
			n++
		}
		if g.Seen != nil {
			g.Seen(inode)
		}
	}
	g.missed = missing
	if n == 0 {
		return nil
	}
	return fmt.Errorf("%d network namespaces with peers that do not read are out of reach", n)
}

// errHeldUp says that a pass did not come to its end in passLimit.
var errHeldUp = errors.New("pass over connections: held up by a locked socket")

// begin reports whether no pass over the namespace is under way, and that one is now.
func (g *Guard) begin(inode uint32) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.running[inode] {
		return false
	}
	g.running[inode] = true
	return true
}

// pass passes over one namespace, closes its handle, and keeps what is guarded there.
func (g *Guard) pass(ns *netns.NS, every time.Duration) error {
	defer ns.Close()
	policies := make(map[uint32]uint64)
	err := ns.Do(func() error {
		return g.Kernel.Guard(every, func(one loader.Guarded) error {
			if one.Step != loader.GuardEnded {
				policies[one.Policy]++
			}
			g.Log.Debug("guard", "step", one.Step.String(), "netns", one.Netns, "cookie", one.Cookie,
				"user_timeout", one.UserTimeout)
			return nil
		})
	})
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.running, ns.Inode())
	if err == nil {
		g.guarded[ns.Inode()] = policies
		return nil
	}
	return fmt.Errorf("guard connections of %s: %w", ns, err)
}

// forget forgets what was guarded in namespaces that have nothing to guard any more.
func (g *Guard) forget(shut map[uint32]uint32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	maps.DeleteFunc(g.guarded, func(inode uint32, _ map[uint32]uint64) bool {
		_, ok := shut[inode]
		return !ok
	})
}

// finish keeps how the round went, and tells of errors.
func (g *Guard) finish(every time.Duration, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if last := g.status.Err; err != nil && (last == nil || last.Error() != err.Error()) {
		g.Log.Warn("not every peer that does not read is guarded", "err", err)
	}
	g.status = Status{Rounds: g.status.Rounds + 1, Interval: every, Err: err}
}
