// SPDX-License-Identifier: Apache-2.0

package sockets

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
)

// TestClosesShareWalks: what waits while one walk runs goes into the next, but
// for a cookie that is in it already, and other namespaces do not wait.
func TestClosesShareWalks(t *testing.T) {
	var c closes
	release, walks := make(chan bool), make(chan []uint64, 10)
	walk := func(ids []loader.Condemned) []error {
		var cookies []uint64
		errs := make([]error, len(ids))
		for i, id := range ids {
			cookies = append(cookies, id.Cookie)
			if id.Cookie == 3 {
				errs[i] = ErrGone
			}
		}
		walks <- cookies
		<-release
		return errs
	}
	asked := []uint64{1, 2, 2, 3, 4}
	results := make(chan error, len(asked))
	waits := func(inside, waiting int) func() bool {
		return func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			q := c.queues[1]
			return q != nil && q.inside == inside && len(q.waiting) == waiting
		}
	}
	for i, cookie := range asked {
		go func() {
			err := c.join(1, conn.ID{Cookie: cookie}, walk)
			if (cookie == 3) != errors.Is(err, ErrGone) || cookie != 3 && err != nil {
				t.Errorf("cookie %d: %v", cookie, err)
			}
			results <- err
		}()
		labtest.Eventually(t, 10*time.Second, waits(i+1, i), "the close to wait") // the first walks
	}
	if err := c.join(2, conn.ID{Cookie: 1}, func([]loader.Condemned) []error { return []error{nil} }); err != nil {
		t.Errorf("another namespace: %v", err)
	}
	for _, want := range [][]uint64{{1}, {2, 3, 4}, {2}} {
		got := next(t, walks)
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("a walk for %v, want %v", got, want)
		}
		release <- true
	}
	for range asked {
		next(t, results)
	}
	if len(walks) != 0 || len(c.queues) != 0 {
		t.Errorf("%d more walks, %d queues are left", len(walks), len(c.queues))
	}
}

// next receives, in time.
func next[T any](t *testing.T, from chan T) (got T) {
	t.Helper()
	select {
	case got = <-from:
	case <-time.After(10 * time.Second):
		t.Fatal("nothing came")
	}
	return got
}

// Behind a walk that does not end only so many wait.
func TestClosesBound(t *testing.T) {
	c := closes{queues: map[uint32]*queue{1: {inside: maxCloses}}}
	walk := func([]loader.Condemned) []error { return []error{nil} }
	if err := c.join(1, conn.ID{Cookie: 1}, walk); !errors.Is(err, errCloses) {
		t.Errorf("got %v, want errCloses", err)
	}
	if err := c.join(2, conn.ID{Cookie: 1}, walk); err != nil {
		t.Errorf("another namespace: %v", err)
	}
}
