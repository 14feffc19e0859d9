// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/wait"
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
	// passLimit is how long a round waits for its passes: those that take longer go on
	// alone, and the rounds to come say what has become of them.
	passLimit = 500 * time.Millisecond
	// heldUp is how long a pass takes that an application holds up, which keeps a socket
	// locked.
	heldUp = 2 * time.Second
)

// Guard makes rounds. Use New.
type Guard struct {
	Config
	cpu func() time.Duration // of the calling thread

	mu      sync.Mutex
	running map[uint32]time.Time         // since when passes have been under way, by namespace
	failed  map[uint32]error             // what the last pass that came to its end failed of, by namespace
	guarded map[uint32]map[uint32]uint64 // connections by namespace and policy
	status  Status
	spent   time.Duration // of the CPU, by passes since the last round began

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
	return &Guard{Config: c, cpu: conn.ThreadCPU, running: make(map[uint32]time.Time), failed: make(map[uint32]error), guarded: make(map[uint32]map[uint32]uint64)}
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
		every, err := g.round(ctx)
		if err != nil {
			return err
		}
		took := time.Since(began)
		timer := time.NewTimer(max(every-took, took)) // half a processor at most, whatever was promised
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
	survey, cost, err := g.survey()
	if errors.Is(err, loader.ErrUnsupported) {
		return 0, err
	}
	every := g.every(survey.Shortest, cost)
	if err == nil {
		g.forget(survey.Shut)
	}
	if len(survey.Shut) > 0 {
		err = errors.Join(err, g.passes(ctx, survey.Shut, every))
	}
	g.finish(every, err)
	return every, nil
}

// survey surveys the node; cost is what that took of the CPU, and the passes of the round
// before.
func (g *Guard) survey() (found loader.Survey, cost time.Duration, err error) {
	g.mu.Lock()
	cost, g.spent = g.spent, 0
	g.mu.Unlock()
	runtime.LockOSThread() // whose CPU is counted
	defer runtime.UnlockOSThread()
	began := g.cpu()
	found, err = g.Kernel.SurveyWindows()
	return found, cost + g.cpu() - began, err
}

// passes passes over the namespaces that are in shut, all at a time, and waits no
// longer than passLimit.
func (g *Guard) passes(ctx context.Context, shut map[uint32]uint32, every time.Duration) error {
	missing := maps.Clone(shut)
	done := make(chan struct{}, len(shut)) // also where nobody waits any more
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
			continue
		}
		started++
		go func() {
			g.pass(ns, every)
			done <- struct{}{}
		}()
	}
	unreached := g.outOfReach(missing)
	for began, ok := time.Now(), true; ok && started > 0; started-- {
		_, ok = wait.Within(done, passLimit-time.Since(began))
	}
	return errors.Join(unreached, g.failures(shut))
}

// failures is what passes over these namespaces have failed of, nil where of nothing.
func (g *Guard) failures(shut map[uint32]uint32) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	var errs []error
	for _, inode := range slices.Sorted(maps.Keys(shut)) {
		if since, runs := g.running[inode]; runs && time.Since(since) >= heldUp {
			errs = append(errs, fmt.Errorf("guard connections of network namespace %d: %w", inode, errHeldUp))
		} else {
			errs = append(errs, g.failed[inode])
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
	return fmt.Errorf("%d network namespaces with something to guard are out of reach", n)
}

// errHeldUp says that a pass has not come to its end in heldUp.
var errHeldUp = errors.New("held up by a locked socket")

// begin reports whether no pass over the namespace is under way, and that one is now.
func (g *Guard) begin(inode uint32) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, runs := g.running[inode]; runs {
		return false
	}
	g.running[inode] = time.Now()
	return true
}

// pass passes over one namespace, closes its handle, and keeps what is guarded there, or
// why nobody knows.
func (g *Guard) pass(ns *netns.NS, every time.Duration) {
	defer ns.Close()
	policies := make(map[uint32]uint64)
	var spent time.Duration
	err := ns.Do(func() error {
		began := g.cpu() // of this thread until the end
		defer func() { spent = g.cpu() - began }()
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
	g.spent += spent
	if err != nil {
		g.failed[ns.Inode()] = fmt.Errorf("guard connections of %s: %w", ns, err)
		return
	}
	delete(g.failed, ns.Inode())
	g.guarded[ns.Inode()] = policies
}

// forget forgets what was guarded in namespaces that have nothing to guard any more.
func (g *Guard) forget(shut map[uint32]uint32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	maps.DeleteFunc(g.guarded, func(inode uint32, _ map[uint32]uint64) bool {
		_, ok := shut[inode]
		return !ok
	})
	maps.DeleteFunc(g.failed, func(inode uint32, _ error) bool {
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
