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
	"github.com/sockhealth/sockhealth/internal/policy"
)

// lateness measures, on each processor, how late this machine's timers fire while
// connections are judged.
type lateness struct {
	mu  sync.Mutex
	all []lateTimer
}

// lateTimer is one that was due at a moment.
type lateTimer struct{ due, late time.Duration }

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
				l.took(lateTimer{due, max(0, conn.Now()-due)})
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

// hops is how many threads hand a report over to each other until its judgement begins, or
// a close until its application hears of it.
const hops = 3

// excused returns how much later a close comes since timers were late, of a judgement that
// was asked for at a moment. Its attempts are made by an absolute schedule. So it does not
// matter how late timers were on the whole, only those that were due when it waited for
// the report, an attempt, the end of its window or what it waited for beside that, and the close. What
// makes an attempt late the time to the next one makes up for, but the last one's, by half
// of what that has above the peer's limit.
func (l *lateness) excused(asked time.Duration, probe policy.Probe, besides []beside) time.Duration {
	window, spacing := probe.Schedule(0)
	began, over := asked, window
	var attempt time.Duration // what the last one waits for
	for _, b := range besides {
		switch b.reason {
		case forPass, forTurn:
			began += b.took
		case forLimit:
			attempt = b.took
			over += b.took
		default:
			over += b.took
		}
	}
	late := l.handOver(began)
	for n := 1; n < probe.Attempts; n++ {
		due := began + time.Duration(n)*spacing
		if n == probe.Attempts-1 {
			due += attempt
		} else {
			late = max(late-(spacing-policy.MinSpacing)/2, 0)
		}
		late += l.at(due + late)
	}
	if over > window+attempt { // the window's end, and that of what comes after it
		late += l.at(began + window + attempt + late)
	}
	late += l.at(began + over + late)
	return late + l.handOver(began+over+late)
}

// handOver returns how late that makes what goes through several hands at a moment.
func (l *lateness) handOver(moment time.Duration) (late time.Duration) {
	for range hops {
		late += l.at(moment + late)
	}
	return late
}

// at returns for how long what was due at a moment was kept waiting, on the processor where
// that was longest.
func (l *lateness) at(moment time.Duration) (late time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range l.all {
		if t.late >= lateLeast && t.due <= moment+lateTick && moment < t.due+t.late {
			late = max(late, t.due+t.late-moment)
		}
	}
	return late
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
