// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"sync"
)

// background is the work of a server that outlasts a request, or would never
// end by itself.
type background struct {
	// ctx ends with stop.
	ctx    context.Context
	cancel context.CancelFunc

	// mu keeps a goroutine from starting while wait waits.
	mu      sync.Mutex
	stopped bool
	work    sync.WaitGroup
}

func newBackground() *background {
	b := &background{}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	return b
}

// start runs fn, which must end soon after ctx has. It reports false where the
// server is stopping; fn does not run then.
func (b *background) start(fn func()) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopped {
		return false
	}
	b.work.Go(fn)
	return true
}

// stop ends ctx and lets nothing start any more.
func (b *background) stop() {
	b.mu.Lock()
	b.stopped = true
	b.mu.Unlock()
	b.cancel()
}

// wait returns when all work has ended after stop, or with ctx's error.
func (b *background) wait(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		b.work.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
