// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"sync/atomic"
	"time"
)

// lateness measures how late this process's timers fire: on a busy machine they
// do, and what they time comes late with them.
type lateness struct {
	worst atomic.Int64
}

// latenessTick is how often it is measured.
const latenessTick = 20 * time.Millisecond

// run measures until ctx ends.
func (l *lateness) run(ctx context.Context, now func() time.Duration) {
	for began := now(); sleep(ctx, latenessTick); began = now() {
		if late := int64(now() - began - latenessTick); late > l.worst.Load() {
			l.worst.Store(late)
		}
	}
}

// max returns the worst so far.
func (l *lateness) max() time.Duration { return time.Duration(l.worst.Load()) }
