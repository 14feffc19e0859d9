// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
)

// lateness measures, on each processor, how late this machine's timers fire while
// connections are judged.
type lateness struct {
	mu  sync.Mutex
	all []lateTimer
}

// lateTimer is one that was due at a moment.
type lateTimer struct {
	cpu       int
	due, late time.Duration
}

const (
	// lateTick is how long they are.
	lateTick = 5 * time.Millisecond
	// lateLeast is how late one must be to count: what a quiet machine does not do.
	lateLeast = 5 * time.Millisecond
)

// run measures until ctx ends.
func (l *lateness) run(ctx context.Context) {
	var all sync.WaitGroup
	for cpu := range runtime.NumCPU() {
		all.Go(func() {
			runtime.LockOSThread() // and the thread ends with the goroutine: it stays there
			var one unix.CPUSet
			one.Set(cpu)
			_ = unix.SchedSetaffinity(0, &one) // a processor that is not ours is another's
			for ctx.Err() == nil {
				due := conn.Now() + lateTick
				tick := unix.NsecToTimespec(int64(lateTick))
				_ = unix.Nanosleep(&tick, nil)
				l.took(lateTimer{cpu, due, max(0, conn.Now()-due)})
			}
		})
	}
	all.Wait()
}

func (l *lateness) took(t lateTimer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, t)
}

// between returns for how long timers were late between two moments, on the processor
// where that was longest: what had to be done one after the other came late by as much.
func (l *lateness) between(from, to time.Duration) (sum time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	sums := make(map[int]time.Duration)
	for _, t := range l.all {
		if t.late >= lateLeast && t.due+t.late >= from && t.due <= to {
			sums[t.cpu] += t.late
			sum = max(sum, sums[t.cpu])
		}
	}
	return sum
}

// of returns how late one was at worst, and 99 of a hundred at most.
func (l *lateness) of() (worst, usual time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []time.Duration
	for _, t := range l.all {
		all = append(all, t.late)
	}
	slices.Sort(all)
	return quantile(all, 1), quantile(all, 0.99)
}

// quantile of what is sorted: the least that this part of all does not exceed.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max(0, int(q*float64(len(sorted))+0.999999)-1)]
}
