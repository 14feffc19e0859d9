// SPDX-License-Identifier: Apache-2.0

package census

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/sockhealth/sockhealth/internal/cgroup"
	"github.com/sockhealth/sockhealth/internal/container"
)

const (
	// every is the time between walks, give or take a quarter: a container that
	// lives for longer is remembered.
	every = time.Minute
	// share is how much longer than a walk took no other one begins: walks take no
	// more than 0.1 % of a core, whoever asks for them.
	share = 1000
	// leastPause is so at least.
	leastPause = 100 * time.Millisecond
)

// Wake has Watch walk soon: containers have come.
func (c *Census) Wake() {
	select {
	case c.wake <- struct{}{}:
	default: // it is due already
	}
}

// Watch walks over the hierarchy until ctx ends: now, whenever Wake asks and about
// every minute, but so seldom that it takes no more than 0.1 % of a core.
func (c *Census) Watch(ctx context.Context) {
	for ctx.Err() == nil {
		if wait := c.walk(); wait > 0 {
			pause(ctx, wait)
			continue
		}
		timer := time.NewTimer(every*3/4 + rand.N(every/2))
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-c.wake:
		}
		timer.Stop()
	}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// walk remembers every container that is there, or returns how long it is too early
// for that. What it cannot read it passes over.
func (c *Census) walk() time.Duration {
	c.walking.Lock()
	defer c.walking.Unlock()
	began := time.Now()
	if early := c.next.Sub(began); early > 0 {
		return early
	}
	_ = cgroup.Walk(int(c.dir.Fd()), func(e *cgroup.Entry) error {
		if _, ok := c.recall(e.ID); ok {
			return nil
		}
		if who := container.Parse(e.Path); who != (container.ID{}) {
			c.remember(e.ID, who)
		}
		return nil
	})
	ended := time.Now()
	c.next = ended.Add(max(leastPause, share*ended.Sub(began)))
	return 0
}
