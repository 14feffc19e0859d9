// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"time"
)

// expiry is a context whose deadline passes when a test says so, however slow the
// machine is: once its request has come to the peer, say.
type expiry struct {
	context.Context
	at   time.Time
	done chan struct{}
}

// newExpiry returns one, and what has its deadline pass; it passes by itself when the
// machine cannot be that slow.
func newExpiry(t *testing.T) (e *expiry, pass func()) {
	e = &expiry{context.Background(), time.Now().Add(slack), make(chan struct{})}
	pass = sync.OnceFunc(func() { close(e.done) })
	timer := time.AfterFunc(slack, pass)
	t.Cleanup(func() { timer.Stop() })
	return e, pass
}

func (e *expiry) Deadline() (time.Time, bool) { return e.at, true }

func (e *expiry) Done() <-chan struct{} { return e.done }

func (e *expiry) Err() error {
	select {
	case <-e.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// getSlow asks for /slow n times at once, and returns when all ran out of time, which
// they do once the peer has every request.
func getSlow(t *testing.T, c *http.Client, p *peer, n int) {
	t.Helper()
	ctx, pass := newExpiry(t)
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			_, err := get(t, c, ctx, p.URL+"/slow")
			wantTimeout(t, err)
		})
	}
	for range n {
		recv(t, "a request", p.arrived)
	}
	pass()
	all.Wait()
}
