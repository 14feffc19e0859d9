// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
)

// bystanders are connections to every address there is, which are in use all the time,
// and which nobody reports.
type bystanders struct {
	cancel context.CancelFunc
	work   sync.WaitGroup
	n      int
	mu     sync.Mutex
	errs   []error
}

// beat is how often they are used.
const beat = 500 * time.Millisecond

func newBystanders(t *testing.T, b *bed) *bystanders {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	by := &bystanders{cancel: cancel}
	for _, s := range b.Servers {
		for _, addr := range []netip.Addr{s.Addr4, s.Addr6} {
			if addr.Is6() && !lab.IPv6() {
				continue
			}
			c, far := labtest.PairTo(t, labtest.Dialer{NS: b.Client}, s.NS, netip.AddrPortFrom(addr, b.port(beating)))
			near := newEnd(c)
			near.listen(4096, 0)
			peer := newEnd(far)
			peer.listen(4096, 0)
			by.n++
			by.work.Go(func() { by.use(ctx, near, peer) })
		}
	}
	return by
}

// use has both ends talk until ctx ends.
func (by *bystanders) use(ctx context.Context, near, far *end) {
	for ctx.Err() == nil {
		for _, e := range []*end{near, far} {
			if err := e.say(10); err != nil {
				by.fail(fmt.Errorf("%s: %w", e, err))
				return
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(beat):
		case <-near.done:
			err, _ := near.ended()
			by.fail(fmt.Errorf("%s: %w", near, err))
			return
		}
	}
}

func (by *bystanders) fail(err error) {
	by.mu.Lock()
	defer by.mu.Unlock()
	by.errs = append(by.errs, err)
}

// end ends them, and returns how many there were, and what befell those that were
// hurt.
func (by *bystanders) end() (n int, hurt []error) {
	by.cancel()
	by.work.Wait()
	return by.n, by.errs
}
