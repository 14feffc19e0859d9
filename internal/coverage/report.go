// SPDX-License-Identifier: Apache-2.0

package coverage

import "time"

// Count is how it stands with the connections that one policy names.
type Count struct {
	Expected  uint64            // that the policy names
	Unmanaged map[Reason]uint64 // those among them that are not bounded as it wants
	// Mendable are those among Unmanaged that adoption ought to bring in line.
	Mendable uint64
	// DriftFound counts since the start how often scans found that options were
	// changed behind the programs. What adoption finds first is not among it.
	DriftFound uint64
}

// Bounded returns how many are bounded as the policy wants.
func (c *Count) Bounded() uint64 {
	n := c.Expected
	for _, k := range c.Unmanaged {
		n -= min(n, k)
	}
	return n
}

// Report is what the last scan came to. The zero value is that of none.
type Report struct {
	Ended      time.Time // the zero time: there was none yet
	Took, CPU  time.Duration
	Namespaces int
	// Revision is that of the policy in force at that time; Policies has every entry
	// of it, by name.
	Revision string
	Policies map[string]Count
	// Outdated says that another policy is in force by now: of that one nothing is
	// known yet.
	Outdated bool
	// Standing is how many connections adoption ought to have brought in line
	// since the scan before, and has not.
	Standing uint64
	// Err is why the scan was not complete; what it did see is told all the same.
	Err error
}

// Canary is what the last canary came to.
type Canary struct {
	Ended time.Time // the zero time: there was none yet
	// Err is nil where the programs fired. It wraps ErrSilent where they did not;
	// any other says why no canary could be made, so that nothing is known.
	Err error
}

// Known reports whether what the report says of a policy holds: not before a scan of
// the policy in force, and not where that saw nothing of it and was not complete.
func (r *Report) Known(policy string) bool {
	c, ok := r.Policies[policy]
	return ok && !r.Outdated && (r.Err == nil || c.Expected > 0)
}

// key names a connection: before Linux 5.12 a cookie is one namespace's.
type key struct {
	netns  uint32
	cookie uint64
}

// carried is for how many scans on end that are not complete a connection is
// remembered that they did not see.
const carried = 10

// tally sums up one scan.
type tally struct {
	policies map[string]Count
	// drifted and mendable connections, and how many scans ago they were seen.
	drifted, mendable map[key]int
}

func newTally() *tally {
	return &tally{policies: make(map[string]Count), drifted: make(map[key]int), mendable: make(map[key]int)}
}

// see makes sure that a policy is there.
func (t *tally) see(policy string, driftFound uint64) {
	t.policies[policy] = Count{Unmanaged: make(map[Reason]uint64), DriftFound: driftFound}
}

// add counts one connection; before has those that the scan before found drifted.
func (t *tally) add(f *Found, before map[key]int) {
	c, ok := t.policies[f.Policy]
	if !ok {
		return // of a policy that came meanwhile
	}
	id := key{f.Netns, f.Cookie}
	c.Expected++
	if f.Reason != "" {
		c.Unmanaged[f.Reason]++
	}
	if f.mendable() {
		c.Mendable++
		t.mendable[id] = 0
	}
	if f.Reason.drift() {
		t.drifted[id] = 0
		if _, known := before[id]; !known {
			c.DriftFound++
		}
	}
	t.policies[f.Policy] = c
}

// carry keeps what the scan before knew of namespaces that this one did not see all of.
func (t *tally) carry(before *tally, missed map[uint32]bool) {
	for _, of := range []struct{ now, was map[key]int }{{t.drifted, before.drifted}, {t.mendable, before.mendable}} {
		for id, ago := range of.was {
			if _, seen := of.now[id]; !seen && missed[id.netns] && ago < carried {
				of.now[id] = ago + 1
			}
		}
	}
}

// toMend returns how many were seen that adoption ought to bring in line.
func (t *tally) toMend() (n uint64) {
	for _, ago := range t.mendable {
		if ago == 0 {
			n++
		}
	}
	return n
}

// standing returns how many of those could be mended before, too.
func (t *tally) standing(before *tally) (n uint64) {
	for id, ago := range t.mendable {
		if _, had := before.mendable[id]; had && ago == 0 {
			n++
		}
	}
	return n
}
