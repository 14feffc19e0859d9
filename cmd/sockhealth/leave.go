// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/netns/registry"
	"github.com/sockhealth/sockhealth/internal/wait"
)

// What --restore takes: a pass over all namespaces, until nothing waits.
const (
	restoreLimit  = 15 * time.Second
	restorePause  = 200 * time.Millisecond
	restoreBudget = 1000 // keepalives of a pass: 5,000 a second
)

// restored gives every connection its options back, and says how it went.
func restored(ctx context.Context, e *env, pins *loader.Pins) (string, error) {
	p, err := loader.LoadPinned(pins, nil)
	if err != nil {
		return "", err
	}
	defer p.Close()
	if err := p.Release(); err != nil {
		return "", err
	}
	l, err := leaveAll(e, p)
	if err != nil {
		return "", err
	}
	defer l.close()
	released, pending, err := l.release(ctx)
	if err != nil {
		return "", err
	}
	kept := ""
	if pending > 0 {
		kept = fmt.Sprintf(", %d keep a part of what they have", pending)
	}
	if err := l.heldUp(); err != nil {
		fmt.Fprintf(e.stderr, "sockhealth: connections may keep the options that they have: %v\n", err)
	}
	return fmt.Sprintf("%d connections have back what their applications asked for%s\n", released, kept), nil
}

// left takes leave of the connections that are being made: nobody would give them
// their own user timeout back later. Where that does not go, the programs come off
// all the same.
func left(ctx context.Context, e *env, pins *loader.Pins) {
	err := leavePinned(ctx, e, pins)
	if err != nil && !errors.Is(err, loader.ErrUnsupported) {
		fmt.Fprintf(e.stderr, "sockhealth: connections that are being made may keep the user timeout of connect(): %v\n", err)
	}
}

func leavePinned(ctx context.Context, e *env, pins *loader.Pins) error {
	p, err := loader.LoadPinned(pins, nil)
	if err != nil {
		return err
	}
	defer p.Close()
	if err := p.Leave(); err != nil {
		return err
	}
	l, err := leaveAll(e, p)
	if err != nil {
		return err
	}
	defer l.close()
	return l.connects(ctx)
}

// leave is how programs that come off take leave of the connections.
type leave struct {
	programs *loader.Programs
	spaces   []*netns.NS
	late     []*netns.NS   // those whose walk has not come to its end
	patience time.Duration // with the next of them
}

// newLeave is a leave of some namespaces, whose handles are its own from now on.
func newLeave(p *loader.Programs, spaces []*netns.NS) *leave {
	return &leave{programs: p, spaces: spaces, patience: leavePatience}
}

// leaveAll is a leave of the namespaces that are in sight.
func leaveAll(e *env, p *loader.Programs) (*leave, error) {
	spaces, err := registry.New(p)
	if err != nil {
		return nil, err
	}
	defer spaces.Close()
	if err := spaces.Refresh(); err != nil {
		fmt.Fprintf(e.stderr, "sockhealth: some network namespaces cannot be seen, connections there keep the options that they have: %v\n", err)
	}
	return newLeave(p, spaces.All()), nil
}

// close closes the handles of the namespaces, but those in which a walk is held up.
func (l *leave) close() {
	for _, ns := range l.spaces {
		_ = ns.Close()
	}
}

// A walk over very many sockets takes its time, one that a locked socket holds up never
// ends. leavePatience is how long the first one that does not end is waited for, and
// leastPatience how long each is at least.
const leavePatience, leastPatience = 10 * time.Second, time.Second

// passed is what a walk over a namespace did.
type passed struct {
	released, pending uint64
	err               error
}

// each runs fn in every namespace, and adds up. One whose walk is held up by a socket
// that an application keeps locked is left behind: the others are not to wait for it.
func (l *leave) each(ctx context.Context, fn func() passed) (sum passed) {
	var walked []*netns.NS
	var errs []error
	for i, ns := range l.spaces {
		if ctx.Err() != nil {
			walked, errs = append(walked, l.spaces[i:]...), append(errs, ctx.Err())
			break
		}
		done := make(chan passed, 1)
		go func() {
			var p passed
			err := ns.Do(func() error { p = fn(); return p.err })
			p.err = err
			done <- p
		}()
		p, ok := wait.Within(done, l.patience)
		if !ok {
			l.late, l.patience = append(l.late, ns), max(l.patience/2, leastPatience)
			continue
		}
		walked = append(walked, ns)
		sum.released += p.released
		sum.pending += p.pending
		if p.err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", ns, p.err))
		}
	}
	l.spaces = walked
	sum.err = errors.Join(errs...)
	return sum
}

// heldUp is an error that names the namespaces left behind, or nil.
func (l *leave) heldUp() error {
	if len(l.late) == 0 {
		return nil
	}
	var names []string
	for _, ns := range l.late {
		names = append(names, ns.String())
	}
	return fmt.Errorf("a walk takes too long, as where an application keeps a socket locked: %s", strings.Join(names, ", "))
}

// connects gives every connect() under way its own user timeout back.
func (l *leave) connects(ctx context.Context) error {
	sum := l.each(ctx, func() (p passed) {
		if p.err = l.guard(); p.err == nil {
			_, p.err = l.programs.Adopt(loader.AdoptOptions{Connects: true}, func(loader.Adoption) error { return nil })
		}
		return p
	})
	return errors.Join(sum.err, l.heldUp())
}

// release goes over the namespaces until nothing waits any more, or too long.
func (l *leave) release(ctx context.Context) (released, pending uint64, err error) {
	for began := time.Now(); ; {
		sum := l.each(ctx, l.releaseHere)
		released += sum.released
		if sum.err != nil || sum.pending == 0 {
			return released, sum.pending, sum.err
		}
		if time.Since(began) > restoreLimit {
			if sum := l.each(ctx, func() passed { return passed{err: l.unguard()} }); sum.err != nil {
				return released, sum.pending, sum.err
			}
			sum = l.each(ctx, l.releaseHere)
			return released + sum.released, sum.pending, sum.err
		}
		select {
		case <-ctx.Done():
			return released, sum.pending, ctx.Err()
		case <-time.After(restorePause):
		}
	}
}

// releaseHere goes once over the namespace of the calling thread. A connection is
// counted when it has all its options back.
func (l *leave) releaseHere() (p passed) {
	if p.err = l.guard(); p.err != nil {
		return p
	}
	stats, err := l.programs.Adopt(loader.AdoptOptions{Release: true, Budget: restoreBudget}, func(a loader.Adoption) error {
		if a.Outcome == loader.Released && a.Wait == loader.WaitNone {
			p.released++
		}
		return nil
	})
	p.pending, p.err = stats.Pending(), err
	return p
}

// guard gives back what the guard holds in the namespace of the calling thread for
// peers that read by now.
func (l *leave) guard() error {
	return ifSupported(l.programs.Guard(time.Second, func(loader.Guarded) error { return nil }))
}

// unguard gives peers there that still do not read what their applications asked for.
func (l *leave) unguard() error { return ifSupported(l.programs.Unguard()) }

// ifSupported is the error of what a kernel without the guard has no need of.
func ifSupported(err error) error {
	if errors.Is(err, loader.ErrUnsupported) {
		return nil
	}
	return err
}
