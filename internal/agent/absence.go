// SPDX-License-Identifier: Apache-2.0

package agent

import "time"

// stopped is how long nothing may happen in a judgement: more than that between two
// looks, and the agent was stopped (SIGSTOP, a frozen cgroup) or the machine slept.
// The longest wait of its own is walkLimit.
const stopped = 10 * time.Second

// absence finds such a time.
type absence struct {
	last  time.Duration // of CLOCK_BOOTTIME, which goes on while the machine sleeps
	found bool
}

func (g *absence) look(now time.Duration) {
	g.found = g.found || now-g.last > stopped
	g.last = now
}
