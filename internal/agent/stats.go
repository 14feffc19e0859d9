// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"maps"
	"sync"
	"time"

	"github.com/sockhealth/sockhealth/internal/verdict"
)

// What became of an attempt, as it is counted.
const (
	resultAnswered   = "answered"
	resultUnanswered = "unanswered"
	resultBlocked    = "blocked"
	resultNoRoute    = "no_route"
	resultError      = "error"
)

// ProbeKinds and ProbeResults are the closed lists of what Stats counts.
func ProbeKinds() []string { return []string{string(probeKeepalive), string(probeSegment)} }

// ProbeResults lists what can become of an attempt.
func ProbeResults() []string {
	return []string{resultAnswered, resultUnanswered, resultBlocked, resultNoRoute, resultError}
}

// VerdictKey, CloseKey and ProbeKey are what Stats counts by.
type (
	VerdictKey struct {
		Policy  string // "" where no policy is in force
		Verdict verdict.Word
	}
	CloseKey struct {
		Policy string
		Cause  string // of Causes
		Action Action
	}
	ProbeKey struct{ Kind, Result string }
)

// Stats are the agent's own figures since it started.
type Stats struct {
	Verdicts map[VerdictKey]uint64
	// Closes counts condemned sockets by what was done.
	Closes map[CloseKey]uint64
	Probes map[ProbeKey]uint64
	// WouldHaveClosed counts, by policy, sockets that were condemned under
	// action: observe and got payload later.
	WouldHaveClosed map[string]uint64
	// Suspects counts, by policy, the connections that the silence watch had judged.
	Suspects map[string]uint64
	// SweepsFailed counts the sweeps that could not look for siblings.
	SweepsFailed uint64
	// Judgements are under way now.
	Judgements int
	// Deferred are condemned sockets that wait for the budget, or have their turn;
	// DeferralsRefused counts those that found too many waiting.
	Deferred         int
	DeferralsRefused uint64
	// Frozen is since when closing is, by the wall clock; zero: it is not. FrozenWhy is
	// why.
	Frozen    time.Time
	FrozenWhy Freeze
}

// stats gathers Stats. The zero value is ready.
type stats struct {
	mu       sync.Mutex
	verdicts map[VerdictKey]uint64
	closes   map[CloseKey]uint64
	probes   map[ProbeKey]uint64
	live     map[string]uint64
	suspects map[string]uint64
	unswept  uint64
	observe  func(time.Duration) // of verdicts, nil: nobody listens
}

// add counts in a map that it makes first where need be.
func add[K comparable](m *map[K]uint64, k K) {
	if *m == nil {
		*m = make(map[K]uint64)
	}
	(*m)[k]++
}

// probed counts the attempts of one judgement: the last one was answered or
// none was.
func (s *stats) probed(kinds []AttemptKind, answered bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, k := range kinds {
		result := resultUnanswered
		if answered && i == len(kinds)-1 {
			result = resultAnswered
		}
		add(&s.probes, ProbeKey{string(k), result})
	}
}

// refused counts an attempt that did not leave.
func (s *stats) refused(kind AttemptKind, result string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	add(&s.probes, ProbeKey{string(kind), result})
}

// judged counts one verdict.
func (s *stats) judged(r *Result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	add(&s.verdicts, VerdictKey{r.Policy, r.Verdict})
	if s.observe != nil {
		s.observe(r.Duration)
	}
}

// condemned counts one socket that was to be closed.
func (s *stats) condemned(policy, cause string, action Action) {
	s.mu.Lock()
	defer s.mu.Unlock()
	add(&s.closes, CloseKey{policy, cause, action})
}

// wouldHaveClosed counts a live socket that observing has spared.
func (s *stats) wouldHaveClosed(policy string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	add(&s.live, policy)
}

// suspected counts one that the silence watch had judged.
func (s *stats) suspected(policy string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	add(&s.suspects, policy)
}

// notSwept counts sweeps that could not look for siblings.
func (s *stats) notSwept(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unswept += uint64(n)
}

// Observe makes the agent tell the duration of every verdict to fn, which must
// not block. It is called once, before the first report.
func (a *Agent) Observe(fn func(time.Duration)) { a.stats.observe = fn }

// Stats returns a copy of the figures.
func (a *Agent) Stats() Stats {
	a.mu.Lock()
	n := len(a.judgements)
	a.mu.Unlock()
	a.queue.mu.Lock()
	deferred, refused := len(a.queue.in), a.queue.refused
	a.queue.mu.Unlock()
	a.outlook.mu.Lock()
	frozen, why := a.outlook.frozen, a.outlook.why
	a.outlook.mu.Unlock()
	s := &a.stats
	s.mu.Lock()
	defer s.mu.Unlock()
	return Stats{
		Verdicts: maps.Clone(s.verdicts), Closes: maps.Clone(s.closes),
		Probes: maps.Clone(s.probes), WouldHaveClosed: maps.Clone(s.live),
		Suspects: maps.Clone(s.suspects), SweepsFailed: s.unswept, Judgements: n,
		Deferred: deferred, DeferralsRefused: refused, Frozen: frozen, FrozenWhy: why,
	}
}
