// SPDX-License-Identifier: Apache-2.0

package adopt

import "github.com/sockhealth/sockhealth/internal/loader"

// Count is how many connections a policy names, and what they are.
type Count struct {
	Managed uint64            // bounded as the policy wants
	Pending map[string]uint64 // those among them whose options are not all set, by what they wait for
	Refused map[string]uint64 // not ours to touch, by reason
}

// Coverage is what the last round met. Package coverage is the check on it.
type Coverage struct {
	Rounds     int
	Namespaces int
	Policies   map[uint32]Count // by the policy's id; see loader.InForce
	Err        error            // why the last round was not complete
}

// passed is what one pass met.
type passed struct {
	stats    loader.AdoptStats
	policies map[uint32]*Count
}

func newPassed() *passed { return &passed{policies: make(map[uint32]*Count)} }

// add counts one connection.
func (p *passed) add(one loader.Adoption) error {
	c := p.policies[one.Policy]
	if c == nil {
		c = &Count{Pending: make(map[string]uint64), Refused: make(map[string]uint64)}
		p.policies[one.Policy] = c
	}
	switch {
	case one.Outcome == loader.Released:
	case one.Outcome == loader.Refused:
		c.Refused[one.Refusal.String()]++
	default:
		c.Managed++
		if one.Wait != loader.WaitNone {
			c.Pending[one.Wait.String()]++
		}
	}
	return nil
}

// Coverage sums up the last complete pass over each namespace.
func (a *Adopter) Coverage() Coverage {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := Coverage{Rounds: a.rounds, Namespaces: len(a.passed), Policies: make(map[uint32]Count), Err: a.err}
	for _, p := range a.passed {
		for id, c := range p.policies {
			sum, ok := out.Policies[id]
			if !ok {
				sum = Count{Pending: make(map[string]uint64), Refused: make(map[string]uint64)}
			}
			sum.Managed += c.Managed
			for why, n := range c.Pending {
				sum.Pending[why] += n
			}
			for why, n := range c.Refused {
				sum.Refused[why] += n
			}
			out.Policies[id] = sum
		}
	}
	return out
}
