// SPDX-License-Identifier: Apache-2.0

package adopt

import "github.com/sockhealth/sockhealth/internal/loader"

// Count is how many connections of a policy wait, and for what.
type Count struct {
	Pending map[string]uint64 // their options are not all set, by what they wait for
}

// Coverage is what the last round met. Package coverage is the check on it.
type Coverage struct {
	Rounds     int
	Namespaces int
	Policies   map[uint32]Count // where any wait, by the policy's id; see loader.InForce
	Err        error            // why the last round was not complete
}

// passed is what one pass met.
type passed struct {
	stats    loader.AdoptStats
	policies map[uint32]Count
}

func newPassed() *passed { return &passed{policies: make(map[uint32]Count)} }

// add counts one connection.
func (p *passed) add(one loader.Adoption) error {
	if one.Outcome != loader.Released && one.Outcome != loader.Refused && one.Wait != loader.WaitNone {
		count(p.policies, one.Policy, one.Wait.String(), 1)
	}
	return nil
}

// count adds to what is counted of a policy.
func count(to map[uint32]Count, policy uint32, wait string, n uint64) {
	c, ok := to[policy]
	if !ok {
		c = Count{Pending: make(map[string]uint64)}
		to[policy] = c
	}
	c.Pending[wait] += n
}

// Coverage sums up the last complete pass over each namespace.
func (a *Adopter) Coverage() Coverage {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := Coverage{Rounds: a.rounds, Namespaces: len(a.passed), Policies: make(map[uint32]Count), Err: a.err}
	for _, p := range a.passed {
		for id, c := range p.policies {
			for wait, n := range c.Pending {
				count(out.Policies, id, wait, n)
			}
		}
	}
	return out
}
