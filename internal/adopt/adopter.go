// SPDX-License-Identifier: Apache-2.0

package adopt

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/wait"
)

// Kernel passes over the connections of the calling thread's namespace
// (loader.Programs).
type Kernel interface {
	Adopt(o loader.AdoptOptions, fn func(loader.Adoption) error) (loader.AdoptStats, error)
}

// Namespaces are those that the node has now. The caller closes the handles.
type Namespaces interface {
	All() []*netns.NS
}

// Config is what New needs. Every field is required.
type Config struct {
	Kernel     Kernel
	Namespaces Namespaces
	Log        *slog.Logger
	// Rate is how many keepalives a second the node may set off at most.
	Rate int
}

// Rate is that of a node whose operator asks for no other.
const Rate = 5000

const (
	// beat is the time between rounds while connections wait for their turn.
	beat = 100 * time.Millisecond
	// firstLook and lastLook bound the time between rounds while connections
	// wait for something else: it doubles from the one to the other.
	firstLook, lastLook = time.Second, 30 * time.Second
	// calm is the time between rounds where nothing waits, give or take a
	// quarter: what was changed behind the programs is found then.
	calm = 5 * time.Minute
	// passLimit is how long a round waits for a pass: one that takes longer, or that an
	// application holds up, which keeps a socket locked, goes on alone.
	passLimit = 2 * time.Second
	// heldUp is how long a pass takes that an application holds up: none takes as long
	// over connections however many.
	heldUp = 10 * time.Second
)

// Adopter makes rounds over the namespaces. Use New.
type Adopter struct {
	Config
	wake chan struct{}

	mu      sync.Mutex
	passed  map[uint32]*passed   // by namespace
	running map[uint32]time.Time // since when passes have been under way, by namespace
	failed  map[uint32]error     // what the last pass that came to its end failed of, by namespace
	err     error                // why the last round was not complete
	rounds  int

	first int // of the namespaces, in this round; Run's alone
}

// New returns an adopter that has done nothing yet.
func New(c Config) *Adopter {
	return &Adopter{Config: c, wake: make(chan struct{}, 1), passed: make(map[uint32]*passed), running: make(map[uint32]time.Time), failed: make(map[uint32]error)}
}

// Wake has a round begin at once: the policy has changed, or a namespace has come.
func (a *Adopter) Wake() {
	select {
	case a.wake <- struct{}{}:
	default: // one is due already
	}
}

// Run makes rounds until ctx ends, whose error it does not return. The error
// wraps loader.ErrUnsupported where this kernel cannot adopt. Errors of single
// namespaces are logged once each time that they change.
func (a *Adopter) Run(ctx context.Context) error {
	pace := pacer{rate: a.Rate}
	var pause time.Duration
	for {
		r, err := a.round(ctx, pace.take(time.Now()))
		if err != nil {
			return err
		}
		pause = next(r, pause)
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-a.wake:
			pause = 0
		case <-timer.C:
		}
		timer.Stop()
	}
}

// next returns the time to the next round, given the time to the last.
func next(r round, last time.Duration) time.Duration {
	switch {
	case r.putOff > 0:
		return beat
	case r.waiting > 0:
		return min(max(2*last, firstLook), lastLook)
	}
	return calm*3/4 + rand.N(calm/2)
}

// round sums up what one round met.
type round struct {
	putOff  uint64 // connections that wait for their turn
	waiting uint64 // and those that wait for something else
}

// round passes over every namespace; budget is how many keepalives it may set off.
func (a *Adopter) round(ctx context.Context, budget uint32) (round, error) {
	var r round
	all := a.Namespaces.All()
	defer func() {
		for _, ns := range all {
			_ = ns.Close()
		}
	}()
	seen := make(map[uint32]bool)
	var errs []error
	// What one has spent the others do not get: the first is another one each time.
	a.first++
	for i := range all {
		ns := all[(a.first+i)%len(all)]
		if ctx.Err() != nil {
			break
		}
		seen[ns.Inode()] = true
		p, late, err := a.pass(ns, budget)
		if errors.Is(err, loader.ErrUnsupported) {
			return r, err
		}
		if err != nil && !errors.Is(err, loader.ErrNoPolicy) {
			errs = append(errs, err)
		}
		budget -= min(budget, p.stats.Spent)
		if late {
			r.waiting++ // for its end
		}
		r.putOff += p.stats.PutOff
		r.waiting += p.stats.Pending()
	}
	a.finish(seen, errors.Join(errs...))
	return r, nil
}

// pass passes over one namespace, and waits no longer than passLimit for it. late: it is
// still under way; the error is that of the pass before, and so is what is put off, and
// what it has spent may be all.
func (a *Adopter) pass(ns *netns.NS, budget uint32) (_ *passed, late bool, _ error) {
	own, err := ns.Dup()
	if err != nil {
		return new(passed), false, err
	}
	if !a.begin(ns.Inode()) {
		_ = own.Close()
		p, err := a.before(ns.Inode(), 0)
		return p, true, err
	}
	p := newPassed()
	done := make(chan error, 1)
	go func() {
		defer own.Close()
		err := own.Do(func() (err error) {
			p.stats, err = a.Kernel.Adopt(loader.AdoptOptions{Budget: budget}, p.add)
			return err
		})
		a.end(ns.Inode(), p, err)
		done <- err
	}()
	if err, ok := wait.Within(done, passLimit); ok {
		return p, false, err
	}
	known, err := a.before(ns.Inode(), budget) // p is the pass's
	return known, true, err
}

// before is what is known of a namespace whose pass is under way.
func (a *Adopter) before(inode, spent uint32) (*passed, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := newPassed()
	if last := a.passed[inode]; last != nil {
		p.stats.PutOff = last.stats.PutOff
	}
	p.stats.Spent = spent
	if since, runs := a.running[inode]; runs && time.Since(since) >= heldUp {
		return p, errHeldUp
	}
	return p, a.failed[inode]
}

// errHeldUp says that a pass has not come to its end in heldUp.
var errHeldUp = errors.New("pass over connections: held up by a locked socket")

// begin reports whether no pass over the namespace is under way, and that one is now:
// those that a socket holds up would be more with each round.
func (a *Adopter) begin(inode uint32) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, runs := a.running[inode]; runs {
		return false
	}
	a.running[inode] = time.Now()
	return true
}

// end notes that it is over. What a complete one met comes in the place of what the one
// before it did.
func (a *Adopter) end(inode uint32, p *passed, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.running, inode)
	delete(a.failed, inode)
	if err != nil {
		a.failed[inode] = err
	} else {
		a.passed[inode] = p
	}
}

// finish forgets the namespaces that have gone, and tells of errors.
func (a *Adopter) finish(seen map[uint32]bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.passed, func(inode uint32, _ *passed) bool { return !seen[inode] })
	maps.DeleteFunc(a.failed, func(inode uint32, _ error) bool { return !seen[inode] })
	a.rounds++
	if err != nil && (a.err == nil || a.err.Error() != err.Error()) {
		a.Log.Warn("bring connections in line with the policy", "err", err)
	}
	a.err = err
}
