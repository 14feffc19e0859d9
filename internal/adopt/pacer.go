// SPDX-License-Identifier: Apache-2.0

package adopt

import "time"

// pacer spreads keepalives over time.
type pacer struct {
	rate int // a second
	last time.Time
}

// take returns how many may be set off now: what the time since the last has
// brought, at most that of one beat.
func (p *pacer) take(now time.Time) uint32 {
	elapsed := beat
	if !p.last.IsZero() {
		elapsed = min(now.Sub(p.last), beat)
	}
	p.last = now
	return uint32(float64(p.rate) * elapsed.Seconds())
}
