// SPDX-License-Identifier: Apache-2.0

package guard

import "time"

const (
	// shortest bounds the time between two rounds from below: a user timeout below three
	// times as long is not waited for.
	shortest = 250 * time.Millisecond
	// longest is the time between two rounds where they cost little: a user timeout that
	// is in force nowhere yet may be shorter than any that is.
	longest = time.Second
	// furthest bounds it from above, however dear a round is: long before an application's
	// own user timeout would be taken to hold, as where no guard runs any more (30 s).
	furthest = 10 * time.Second
	// rest is how many times as long as it took of the CPU no round begins after one, as
	// far as the promise allows: 1 % of a processor.
	rest = 99
)

// every returns the time from a round that costs so much of the CPU to the next: no more
// than a third of the shortest user timeout that is in force, or that the policy would
// put in force on a connection that opens now, which is the promise.
func (g *Guard) every(least, cost time.Duration) time.Duration {
	if force := g.Kernel.InForce(); force != nil {
		for i := range force.Policy.Peers {
			if ut := force.Policy.Peers[i].Options.UserTimeout; least == 0 || ut < least {
				least = ut
			}
		}
	}
	promised := furthest
	if least > 0 {
		promised = min(max(least/3, shortest), furthest)
	}
	return min(promised, max(longest, rest*cost))
}
