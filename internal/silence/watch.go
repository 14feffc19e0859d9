// SPDX-License-Identifier: Apache-2.0

package silence

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/sockhealth/sockhealth/internal/loader"
)

// Kernel passes over the connections (loader.Programs).
type Kernel interface {
	InForce() *loader.InForce
	Silent(fn func(loader.Suspect)) (loader.SilencePass, error)
}

// Config is what New needs. Every field is required.
type Config struct {
	Kernel Kernel
	// Judge is told of every suspect; it must not block.
	Judge func(loader.Suspect)
	Log   *slog.Logger
}

const (
	// beat is the time to the next pass where suspects found no room in the last.
	beat = 100 * time.Millisecond
	// rest is how many times as long as it took of the CPU nothing is done after a
	// pass: 1 % of a core.
	rest = 99
)

// Stats are the figures since the start.
type Stats struct {
	Passes uint64
	CPU    time.Duration // of all passes
	// Every is the time between two passes by the policy in force, 0: none.
	Every time.Duration
	Err   error // why the last pass failed
}

// Watcher makes the passes. Use New.
type Watcher struct {
	Config
	wake chan struct{}

	mu    sync.Mutex
	stats Stats
	again []unjudged
}

// unjudged is a suspect that nobody could judge, and since when.
type unjudged struct {
	loader.Suspect
	since time.Time
}

// mostAgain is how many suspects wait at most to be told of again.
const mostAgain = 4096

// Again has the next pass tell Judge of a suspect once more, since nobody could judge
// it. One that has waited so long that a pass tells of it anew is left to that.
func (w *Watcher) Again(s loader.Suspect) {
	peer := w.Kernel.InForce().Peer(s.Policy)
	if peer == nil || s.Request >= peer.Silence<<(s.Asked+1) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.again) < mostAgain {
		w.again = append(w.again, unjudged{s, time.Now()})
	}
}

// judgeAgain tells of those that waited.
func (w *Watcher) judgeAgain() {
	w.mu.Lock()
	again := w.again
	w.again = nil
	w.mu.Unlock()
	for _, one := range again {
		one.Request += time.Since(one.since)
		w.Judge(one.Suspect)
	}
}

// New returns a watcher that has done nothing yet.
func New(c Config) *Watcher { return &Watcher{Config: c, wake: make(chan struct{}, 1)} }

// Wake says that the policy has changed.
func (w *Watcher) Wake() {
	select {
	case w.wake <- struct{}{}:
	default: // it looks again anyway
	}
}

// Stats returns a copy of the figures.
func (w *Watcher) Stats() Stats {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stats
}

// Run makes passes until ctx ends, whose error it does not return. The error wraps
// loader.ErrUnsupported where this kernel cannot, and a policy wants it to. Other
// errors are logged once each time that they change.
func (w *Watcher) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.wake:
		case <-timer.C:
		}
		timer.Stop() // without a silence nothing but a wake goes on from here
		every := shortest(w.Kernel.InForce())
		var pass loader.SilencePass
		var err error
		if every > 0 {
			w.judgeAgain()
			pass, err = w.Kernel.Silent(w.Judge)
		}
		w.keep(every, pass, err)
		if errors.Is(err, loader.ErrUnsupported) {
			return err
		}
		if every > 0 {
			timer.Reset(next(every, pass))
		}
	}
}

// shortest returns the longest time between two passes that suits every peer of a
// policy, 0 where none is watched.
func shortest(force *loader.InForce) (every time.Duration) {
	if force == nil {
		return 0
	}
	for i := range force.Policy.Peers {
		if p := force.Policy.Peers[i].SilencePass(); p > 0 && (every == 0 || p < every) {
			every = p
		}
	}
	return every
}

// next returns the time to the next pass: up to a quarter less than every, so that
// the agents of many nodes do not probe one peer in step.
func next(every time.Duration, pass loader.SilencePass) time.Duration {
	wait := every - rand.N(every/4)
	if pass.PutOff > 0 {
		wait = min(wait, beat)
	}
	return max(wait, rest*pass.CPU)
}

// keep counts a pass, and tells of its error.
func (w *Watcher) keep(every time.Duration, pass loader.SilencePass, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil && (w.stats.Err == nil || w.stats.Err.Error() != err.Error()) {
		w.Log.Warn("watch for requests that stay unanswered", "err", err)
	}
	w.stats.Every, w.stats.Err = every, err
	if every > 0 && err == nil {
		w.stats.Passes++
	}
	w.stats.CPU += pass.CPU
}
