// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sockhealth/sockhealth/internal/adopt"
	"github.com/sockhealth/sockhealth/internal/api"
	"github.com/sockhealth/sockhealth/internal/coverage"
	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/sockdiag"
)

// startCoverage begins to check that the programs fire, and which connections are
// bounded.
func (s *service) startCoverage() error {
	c := coverage.Config{
		Programs: s.programs, Namespaces: s.spaces, Cgroup: s.cgroup, Every: s.opts.scanEvery, Log: s.log,
		Sight:  s.sight,
		Canary: func(ctx context.Context) error { return coverage.SendCanary(ctx, s.cgroup) },
	}
	if s.programs.Lacks(kernel.Adopt) == nil {
		c.Mend = s.adopter.Load().Wake
	}
	checker := coverage.New(c)
	s.checker.Store(checker)
	s.follow(func(ctx context.Context) error {
		checker.Run(ctx)
		return nil
	})
	return nil
}

// Coverage implements metrics.Coverage.
func (s *service) Coverage() (coverage.Report, coverage.Canary) {
	c := s.checker.Load()
	if c == nil {
		return coverage.Report{}, coverage.Canary{}
	}
	return c.Report(), c.LastCanary()
}

// Adoption implements metrics.Coverage: what the last round of adoption met, by
// policy.
func (s *service) Adoption() map[string]adopt.Count {
	out := make(map[string]adopt.Count)
	a, force := s.adopter.Load(), s.programs.InForce()
	if a == nil {
		return out
	}
	for id, c := range a.Coverage().Policies {
		if peer := force.Peer(id); peer != nil {
			out[peer.Name] = c
		}
	}
	return out
}

// Unmanaged implements api.Admin.
func (a *admin) Unmanaged(ctx context.Context) (list []api.UnmanagedSocket, err error) {
	c := a.checker.Load()
	if c == nil {
		return nil, errors.New("the agent is still starting")
	}
	err = c.Unmanaged(ctx, func(f *coverage.Found) error {
		list = append(list, api.NewUnmanagedSocket(f))
		return nil
	})
	if list == nil && errors.Is(err, coverage.ErrSight) {
		list = []api.UnmanagedSocket{} // none where it can look, which is an answer
	}
	return list, err
}

// checked says how the last scan and the last canary went.
func checked(r *coverage.Report, c *coverage.Canary) api.CoverageStatus {
	out := api.CoverageStatus{
		TookMS: r.Took.Milliseconds(), CPUMS: r.CPU.Milliseconds(), Namespaces: r.Namespaces,
		Revision: r.Revision, Canary: api.CanaryUnknown,
	}
	if !r.Ended.IsZero() {
		ended := r.Ended.Truncate(time.Millisecond)
		out.Scanned = &ended
	}
	if r.Err != nil {
		out.Error = r.Err.Error()
	}
	if c.Ended.IsZero() {
		return out
	}
	sent := c.Ended.Truncate(time.Millisecond)
	out.CanarySent = &sent
	switch {
	case c.Err == nil:
		out.Canary = api.CanaryOK
	case errors.Is(c.Err, coverage.ErrSilent):
		out.Canary = api.CanaryFailed
	}
	if c.Err != nil {
		out.CanaryError = c.Err.Error()
	}
	return out
}

// coverageProblems says what the checks found wrong.
func coverageProblems(r *coverage.Report, c *coverage.Canary) (out []string) {
	switch {
	case errors.Is(c.Err, coverage.ErrSilent):
		out = append(out, fmt.Sprintf("the canary connection was not bounded, others may not be either: %v [restart the agent]", c.Err))
	case c.Err != nil:
		out = append(out, fmt.Sprintf("no canary connection could be made, whether the programs act is not known: %v", c.Err))
	}
	if r.Standing > 0 {
		out = append(out, fmt.Sprintf("%d connections are not bounded although the policy names them [sockhealth sockets --unmanaged]", r.Standing))
	}
	if err := untold(r.Err); err != nil {
		out = append(out, fmt.Sprintf("not every connection could be checked: %v", err))
	}
	return out
}

// untold returns those of a scan's errors that no feature of the status tells: that
// this kernel lists no connections, or shows not every namespace.
func untold(err error) error {
	list := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok { // one of each namespace
		list = joined.Unwrap()
	}
	list = slices.DeleteFunc(slices.Clone(list), func(one error) bool {
		return errors.Is(one, sockdiag.ErrUnsupported) || errors.Is(one, coverage.ErrSight)
	})
	return errors.Join(list...)
}

// countCoverage adds what the last scan counted to the totals of a policy.
func countCoverage(p *api.PolicyStatus, r *coverage.Report) {
	c := r.Policies[p.Name]
	if p.DriftFound = c.DriftFound; r.Outdated {
		return // the rest is another policy's
	}
	p.Expected, p.Bounded = c.Expected, c.Bounded()
	for reason, n := range c.Unmanaged {
		if p.Unmanaged == nil {
			p.Unmanaged = make(map[string]uint64)
		}
		p.Unmanaged[string(reason)] = n
	}
}
