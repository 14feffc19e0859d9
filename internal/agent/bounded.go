// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/netns"
)

const (
	// maxHeldUp bounds the calls of one namespace that are held up at a time.
	maxHeldUp = 8
	// maxCalls bounds the calls into the kernel at one time, each of which
	// needs descriptors and a thread for a moment.
	maxCalls = 64
)

// bounded runs fn, which may be held up by a socket that an application keeps
// locked, and waits no longer than walkLimit. The error is fn's, or errHeldUp;
// fn then goes on alone.
func (a *Agent) bounded(ns *netns.NS, fn func(ns *netns.NS) error) error {
	own, err := a.handles.hold(ns)
	if err != nil {
		return err
	}
	k := own.Inode()
	a.mu.Lock()
	if a.heldUp[k] >= maxHeldUp {
		a.mu.Unlock()
		a.handles.drop(own)
		return errHeldUp
	}
	a.mu.Unlock()
	done := make(chan error, 1)
	go func() {
		defer a.handles.drop(own)
		done <- fn(own)
	}()
	limit := time.NewTimer(walkLimit)
	defer limit.Stop()
	select {
	case err := <-done:
		return err
	case <-limit.C:
	}
	a.mu.Lock()
	a.heldUp[k]++
	a.mu.Unlock()
	go func() {
		<-done
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.heldUp[k]--; a.heldUp[k] == 0 {
			delete(a.heldUp, k)
		}
	}()
	return errHeldUp
}

// scan returns the sockets of a namespace that match.
func (a *Agent) scan(ns *netns.NS, match func(*conn.Snapshot) bool) ([]conn.Snapshot, error) {
	var found []conn.Snapshot // nobody's but fn's until it has ended
	err := a.bounded(ns, func(ns *netns.NS) error {
		return a.Sockets.Scan(ns, func(s conn.Snapshot) error {
			if match(&s) {
				found = append(found, s)
			}
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}

// again looks once more at a socket. Where its application holds the lock, what
// comes meanwhile does not show: it waits a moment for a look without.
func (a *Agent) again(ns *netns.NS, id conn.ID) (conn.Snapshot, error) {
	const tries, pause = 10, 5 * time.Millisecond
	for try := 1; ; try++ {
		s, err := a.lookOnce(ns, id)
		if err != nil || !s.Locked || try == tries || a.ctx.Err() != nil {
			return s, err
		}
		a.pause(pause)
	}
}

// lookOnce looks, when it is its turn.
func (a *Agent) lookOnce(ns *netns.NS, id conn.ID) (conn.Snapshot, error) {
	a.turns <- struct{}{}
	defer func() { <-a.turns }()
	return a.Sockets.Again(ns, id)
}

// send sends one segment, when it is its turn.
func (a *Agent) send(ns *netns.NS, s *conn.Snapshot) error {
	a.turns <- struct{}{}
	defer func() { <-a.turns }()
	return a.Prober.Send(ns, s)
}
