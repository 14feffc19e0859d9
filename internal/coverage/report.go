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
	// Policies has every entry of the policy in force at that time, by name.
	Policies map[string]Count
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

// tally sums up one scan.
type tally struct {
	policies map[string]Count
	drifted  map[uint64]bool // by cookie
	mendable map[uint64]bool
}

func newTally() *tally {
	return &tally{policies: make(map[string]Count), drifted: make(map[uint64]bool), mendable: make(map[uint64]bool)}
}

// see makes sure that a policy is there.
func (t *tally) see(policy string, driftFound uint64) {
	t.policies[policy] = Count{Unmanaged: make(map[Reason]uint64), DriftFound: driftFound}
}

// add counts one connection; before has those that the scan before found drifted.
func (t *tally) add(f *Found, before map[uint64]bool) {
	c, ok := t.policies[f.Policy]
	if !ok {
		return // of a policy that came meanwhile
	}
	c.Expected++
	if f.Reason != "" {
		c.Unmanaged[f.Reason]++
	}
	if f.mendable() {
		c.Mendable++
		t.mendable[f.Cookie] = true
	}
	if f.Reason.drift() {
		t.drifted[f.Cookie] = true
		if !before[f.Cookie] {
			c.DriftFound++
		}
	}
	t.policies[f.Policy] = c
}

// standing returns how many could be mended in the scan before, too.
func (t *tally) standing(before map[uint64]bool) (n uint64) {
	for cookie := range t.mendable {
		if before[cookie] {
			n++
		}
	}
	return n
}
