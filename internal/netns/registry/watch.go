// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	// Interval is that of Watch where none is given.
	Interval = 10 * time.Second
	// leastPause and pauseShare are the least time from the end of a refresh to
	// one that is asked for: long enough that whoever makes namespaces as fast
	// as he can costs no more than 5 % of a core.
	leastPause = 100 * time.Millisecond
	pauseShare = 20
	// rest is for how long a namespace that Unknown named and no refresh found
	// is not looked for again.
	rest = time.Minute
	// mostAsked bounds what Unknown remembers.
	mostAsked = 4096
)

// Watch refreshes until ctx ends: every interval (0: Interval), give or take a
// quarter, and at once when something comes from wake (nil: never) or Unknown
// names a namespace. Refreshes that are asked for stand at least 100 ms apart.
// Those on the interval walk over open files every 5 minutes, and where a namespace
// is known that nothing else keeps; but no more often than takes 0.1 % of a core.
// What a refresh could not see is in Status.
func (r *Registry) Watch(ctx context.Context, every time.Duration, wake <-chan struct{}) {
	if every <= 0 {
		every = Interval
	}
	for {
		asked := false
		timer := time.NewTimer(every*3/4 + rand.N(every/2+1))
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-r.wake:
			asked = r.breathe(ctx)
		case _, ok := <-wake:
			if !ok {
				wake = nil
			}
			asked = ok && r.breathe(ctx)
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
		_ = r.refresh(asked) // Status has it
	}
}

// breathe waits until a refresh that is asked for may begin.
func (r *Registry) breathe(ctx context.Context) bool {
	r.mu.Lock()
	wait := time.Until(r.status.Ended.Add(r.pause))
	r.mu.Unlock()
	if wait <= 0 {
		return true
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
	return true
}

// Unknown says that something happened in this namespace, by its inode number. It
// asks Watch to refresh where it is not known, at most once a minute for each. It
// never blocks.
func (r *Registry) Unknown(inode uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if r.entries[inode] != nil || now.Before(r.asked[inode]) || len(r.asked) >= mostAsked {
		return
	}
	r.asked[inode] = now.Add(rest)
	select {
	case r.wake <- struct{}{}:
	default:
	}
}
