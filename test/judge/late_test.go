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

// excused returns how much later a close came since timers were late. What is done until the
// judgement begins, and from its last attempt but one on, is done one after the other: there
// all of them count. In between the attempts are made by an absolute schedule: only a timer
// counts that one waited for, and of that only what the next one does not make up for, which
// is half of what the distance has above the peer's limit.
func (l *lateness) excused(o *outcome) time.Duration {
	asked, began := o.asked, o.at-o.lasted
	for _, b := range o.besides {
		switch b.reason {
		case forPass, forTurn:
			asked += b.took
		case forApp: // is asked as soon as the first attempt is answered
			return l.sum(asked, o.at)
		}
	}
	_, spacing := o.probe.Schedule(0)
	var late time.Duration // of an attempt
	n := 1
	for ; n < o.probe.Attempts-2; n++ {
		late = max(late-(spacing-policy.MinSpacing)/2, 0)
		late += l.at(began + time.Duration(n)*spacing + late)
	}
	return l.sum(asked, began) + late + l.sum(began+time.Duration(n)*spacing, o.at)
}

// sum returns for how long timers were late between two moments, on the processor where
// that was longest.
func (l *lateness) sum(from, to time.Duration) (sum time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	sums := make(map[int]time.Duration)
	for _, t := range l.all {
		if begins, ends := max(t.due, from), min(t.due+t.late, to); t.late >= lateLeast && begins < ends {
			sums[t.cpu] += ends - begins
			sum = max(sum, sums[t.cpu])
		}
	}
	return sum
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
