// SPDX-License-Identifier: Apache-2.0

package coverage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/netns"
)

// Programs are those that ought to bound connections (loader.Programs).
type Programs interface {
	Looker
	InForce() *loader.InForce
	// ForeignInEffect reports whether programs of others see a cgroup's sockets.
	ForeignInEffect(cgroup string) (bool, error)
}

// Namespaces are those that the node has now. The caller closes the handles.
type Namespaces interface {
	All() []*netns.NS
}

// ErrSight says that there are namespaces that cannot be looked into.
var ErrSight = errors.New("not every network namespace is in sight")

// Config is what New needs.
type Config struct {
	Programs   Programs
	Namespaces Namespaces
	// Sight says why Namespaces may lack some, nil where it does not.
	Sight  func() error
	Cgroup string // where the programs are attached
	// Canary opens one, and says whether the programs fired: see Canary.Err.
	Canary func(context.Context) error
	// Mend asks adoption to begin; nil where the kernel cannot adopt.
	Mend func()
	Log  *slog.Logger
	// Every is the time between scans, give or take a quarter; 0: Interval.
	Every time.Duration
}

const (
	// Interval is the time between scans where nobody asks for another.
	Interval = 5 * time.Minute
	// first is when the first scan begins: adoption has been once around then.
	first = time.Second
	// soon is the time to the next scan where one has found what adoption ought
	// to mend.
	soon = 10 * time.Second
	// share is how many times as long as its CPU is between two scans: they take
	// 0.1 % of a core. Who asks for scans more often than Interval allows in
	// proportion more.
	share = 1000
)

// Scanner scans now and then. Use New.
type Scanner struct {
	Config
	wake chan struct{}

	mu     sync.Mutex
	report Report
	canary Canary
	// last is the tally behind report, held by Run's goroutine alone.
	last *tally
}

// New returns a scanner that has done nothing yet.
func New(c Config) *Scanner {
	if c.Every <= 0 {
		c.Every = Interval
	}
	return &Scanner{Config: c, wake: make(chan struct{}, 1), last: newTally()}
}

// Wake has Run scan as soon as its pace allows: the policy has changed.
func (s *Scanner) Wake() {
	select {
	case s.wake <- struct{}{}:
	default: // it is due already
	}
}

// Run sends a canary and scans, again and again until ctx ends. What it finds is in
// Report and LastCanary; changes for the worse are logged.
func (s *Scanner) Run(ctx context.Context) {
	s.Send(ctx)
	for err := sleep(ctx, min(first, s.Every)); err == nil; {
		select {
		case <-s.wake: // it is heard
		default:
		}
		r := s.scan(ctx)
		if err = s.await(ctx, &r); err == nil {
			s.Send(ctx)
		}
	}
}

// await waits until the next scan is due, and returns ctx's error where that ends
// first.
func (s *Scanner) await(ctx context.Context, r *Report) error {
	rest := max(s.rest(r), min(soon, s.Every*3/4)) // whoever asks
	if err := sleep(ctx, rest); err != nil {
		return err
	}
	timer := time.NewTimer(s.next(r) - rest)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-s.wake:
	case <-timer.C:
	}
	return nil
}

// next returns the time from the end of a scan to the next that nobody asks for.
func (s *Scanner) next(r *Report) time.Duration {
	wait := s.Every*3/4 + rand.N(s.Every/2+1)
	if r.Outdated || s.Mend != nil && s.last.toMend() > 0 && r.Standing == 0 {
		wait = min(wait, soon)
	}
	return max(wait, s.rest(r))
}

// rest returns the least time from the end of a scan to the next.
func (s *Scanner) rest(r *Report) time.Duration {
	most := float64(share) * min(1, float64(s.Every)/float64(Interval))
	return time.Duration(most * float64(r.CPU))
}

// Report returns what the last scan came to. The caller must not change it.
func (s *Scanner) Report() Report {
	s.mu.Lock()
	r := s.report
	s.mu.Unlock()
	if force := s.Programs.InForce(); force != nil {
		r.Outdated = !r.Ended.IsZero() && r.Revision != force.Policy.Revision
	}
	return r
}

// LastCanary returns what the last canary came to.
func (s *Scanner) LastCanary() Canary {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.canary
}

// Send sends a canary, and logs where the answer is another than the last.
func (s *Scanner) Send(ctx context.Context) {
	err := s.Config.Canary(ctx)
	if ctx.Err() != nil {
		return
	}
	s.mu.Lock()
	before := s.canary
	s.canary = Canary{Ended: time.Now(), Err: err}
	s.mu.Unlock()
	switch {
	case errors.Is(err, ErrSilent) && !sameError(err, before.Err):
		s.Log.Error("the canary connection was not bounded", "error", err)
	case err != nil && !sameError(err, before.Err):
		s.Log.Warn("no canary connection could be made", "error", err)
	case err == nil && before.Err != nil:
		s.Log.Info("the canary connection was bounded again")
	}
}

// scan makes one scan and keeps what it comes to; but nothing of one during which
// another policy came: it is outdated.
func (s *Scanner) scan(ctx context.Context) Report {
	began, t, p := time.Now(), newTally(), new(pace)
	force := s.Programs.InForce()
	s.mu.Lock()
	before := s.report
	s.mu.Unlock()
	r := Report{Policies: t.policies}
	if force != nil {
		r.Revision = force.Policy.Revision
		for i := range force.Policy.Peers {
			name := force.Policy.Peers[i].Name
			t.see(name, before.Policies[name].DriftFound)
		}
	}
	missed := make(map[uint32]bool)
	r.Namespaces, r.Err = s.all(ctx, force, p, missed, func(f *Found) error {
		t.add(f, s.last.drifted)
		return nil
	})
	r.Ended, r.Took, r.CPU = time.Now(), time.Since(began), p.used
	if ctx.Err() != nil {
		return before
	}
	if s.Programs.InForce() != force {
		r.Outdated = true
		return r
	}
	t.carry(s.last, missed)
	r.Standing = t.standing(s.last)
	s.mu.Lock()
	s.report = r
	s.mu.Unlock()
	s.last = t
	if t.toMend() > 0 && s.Mend != nil {
		s.Mend()
	}
	s.tell(&before, &r)
	return r
}

// tell logs what is worse than before, and that all is well again.
func (s *Scanner) tell(before, r *Report) {
	if r.Err != nil && !sameError(r.Err, before.Err) {
		s.Log.Warn("not every connection could be checked", "error", r.Err)
	}
	if r.Standing == 0 && before.Standing > 0 && r.Err == nil {
		s.Log.Info("the connections that the policy names are bounded again")
	}
	if r.Standing <= before.Standing {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(r.Policies)) {
		if c := r.Policies[name]; c.Mendable > 0 {
			s.Log.Warn("connections are not bounded although the policy names them",
				"policy", name, "connections", c.Expected, "not_bounded", c.Mendable, "reasons", c.Unmanaged)
		}
	}
}

// Unmanaged looks for the connections that are not bounded as their policies want,
// now and without rest, and calls fn for each until it returns an error, which
// Unmanaged returns. With any other error some may be missing.
func (s *Scanner) Unmanaged(ctx context.Context, fn func(*Found) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var own error
	_, err := s.all(ctx, s.Programs.InForce(), nil, nil, func(f *Found) error {
		if f.Reason == "" {
			return nil
		}
		if own = fn(f); own != nil {
			cancel()
		}
		return own
	})
	if own != nil {
		return own
	}
	return err
}

// all scans one namespace after the other and returns how many were scanned. Those of
// which it did not see all are in missed, unless that is nil.
func (s *Scanner) all(
	ctx context.Context, force *loader.InForce, p *pace, missed map[uint32]bool, found func(*Found) error,
) (n int, err error) {
	if force == nil {
		return 0, loader.ErrNoPolicy
	}
	var errs []error
	if s.Sight != nil {
		if err := s.Sight(); err != nil {
			errs = append(errs, fmt.Errorf("%w: %w", ErrSight, err))
		}
	}
	groups := &cgroups{root: s.Cgroup}
	for _, ns := range s.Namespaces.All() {
		one := scan{
			kernel: s.Programs, force: force, cgroups: groups, foreign: s.Programs.ForeignInEffect, pace: p, ns: ns, found: found,
		}
		err := ctx.Err() // the handles of the rest are closed all the same
		if err == nil {
			err = one.run(ctx)
		}
		_ = ns.Close()
		switch {
		case err == nil:
			n++
		case ctx.Err() == nil:
			errs = append(errs, err)
			if missed != nil {
				missed[ns.Inode()] = true
			}
		}
	}
	if ctx.Err() != nil {
		return n, ctx.Err()
	}
	return n, errors.Join(errs...)
}

func sameError(a, b error) bool {
	return a == nil && b == nil || a != nil && b != nil && a.Error() == b.Error()
}
