// SPDX-License-Identifier: Apache-2.0

package coverage

import (
	"context"
	"errors"
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

// Config is what New needs.
type Config struct {
	Programs   Programs
	Namespaces Namespaces
	Cgroup     string // where the programs are attached
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
	return &Scanner{Config: c, last: newTally()}
}

// Run scans until ctx ends, with a canary each but for the first, which Send is
// for. What it finds is in Report and LastCanary; changes for the worse are logged.
func (s *Scanner) Run(ctx context.Context) {
	wait := min(first, s.Every)
	for sent := true; sleep(ctx, wait) == nil; sent = false {
		if !sent {
			s.Send(ctx)
		}
		r := s.scan(ctx)
		if ctx.Err() != nil {
			return
		}
		wait = s.next(&r)
	}
}

// next returns the time from the end of a scan to the next.
func (s *Scanner) next(r *Report) time.Duration {
	wait := s.Every*3/4 + rand.N(s.Every/2+1)
	if s.Mend != nil && len(s.last.mendable) > 0 && r.Standing == 0 {
		wait = min(wait, soon)
	}
	most := float64(share) * min(1, float64(s.Every)/float64(Interval))
	return max(wait, time.Duration(most*float64(r.CPU)))
}

// Report returns what the last scan came to. The caller must not change it.
func (s *Scanner) Report() Report {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.report
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

// scan makes one scan and keeps what it comes to.
func (s *Scanner) scan(ctx context.Context) Report {
	began, t, p := time.Now(), newTally(), new(pace)
	force := s.Programs.InForce()
	s.mu.Lock()
	before := s.report
	s.mu.Unlock()
	if force != nil {
		for i := range force.Policy.Peers {
			name := force.Policy.Peers[i].Name
			t.see(name, before.Policies[name].DriftFound)
		}
	}
	n, err := s.all(ctx, force, p, func(f *Found) error {
		t.add(f, s.last.drifted)
		return nil
	})
	if ctx.Err() != nil {
		return before
	}
	r := Report{
		Ended: time.Now(), Took: time.Since(began), CPU: p.used, Namespaces: n, Policies: t.policies,
		Standing: t.standing(s.last.mendable), Err: err,
	}
	s.mu.Lock()
	s.report = r
	s.mu.Unlock()
	s.last = t
	if len(t.mendable) > 0 && s.Mend != nil {
		s.Mend()
	}
	s.tell(&before, &r)
	return r
}

// tell logs what is worse than before.
func (s *Scanner) tell(before, r *Report) {
	if r.Err != nil && !sameError(r.Err, before.Err) {
		s.Log.Warn("not every connection could be checked", "error", r.Err)
	}
	if r.Standing == 0 || r.Standing == before.Standing {
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
	_, err := s.all(ctx, s.Programs.InForce(), nil, func(f *Found) error {
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

// all scans one namespace after the other and returns how many were scanned.
func (s *Scanner) all(ctx context.Context, force *loader.InForce, p *pace, found func(*Found) error) (int, error) {
	if force == nil {
		return 0, loader.ErrNoPolicy
	}
	spaces := s.Namespaces.All()
	defer func() {
		for _, ns := range spaces {
			_ = ns.Close()
		}
	}()
	n := 0
	var errs []error
	groups := &cgroups{root: s.Cgroup}
	for _, ns := range spaces {
		one := scan{
			kernel: s.Programs, force: force, cgroups: groups, foreign: s.Programs.ForeignInEffect, pace: p, ns: ns, found: found,
		}
		if err := one.run(ctx); err != nil {
			if ctx.Err() != nil {
				return n, ctx.Err()
			}
			errs = append(errs, err)
			continue
		}
		n++
	}
	return n, errors.Join(errs...)
}

func sameError(a, b error) bool {
	return a == nil && b == nil || a != nil && b != nil && a.Error() == b.Error()
}
