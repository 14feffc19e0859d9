// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"net/netip"
	"sync"
	"testing"

	"github.com/sockhealth/sockhealth/internal/agent"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/sockets"
)

// TestReportsAtOnce: reports that need a walk each, many at a time, are all answered.
func TestReportsAtOnce(t *testing.T) {
	reports := 40
	if testing.Short() { // on an emulated machine: more than walks may be under way
		reports = 12
	}
	b := newBed(t, patient)
	b.poolTo(t, labtest.Fewer(1000), 7000)
	ln := labtest.Listen(t, b.Server, netip.AddrPortFrom(b.ServerAddr4, 7100))
	alone := netip.AddrPortFrom(b.ClientAddr4, 5000) // nobody else has this port
	client := labtest.Dial(t, b.Client, alone, labtest.Addr(ln.Addr()))
	exchange(t, client, labtest.Accept(t, ln))
	whole := report(b.Client, client, 0)
	s, err := sockets.New(b.Programs).Get(b.Client, whole.Local, whole.Peer)
	if err != nil {
		t.Fatal(err)
	}
	byPeer, byLocal, byCookie := whole, whole, whole
	byPeer.Local, byLocal.Peer = netip.AddrPort{}, netip.AddrPort{}
	byCookie.Local, byCookie.Peer, byCookie.Cookie = netip.AddrPort{}, netip.AddrPort{}, s.Cookie
	for name, r := range map[string]agent.Report{"peer": byPeer, "local": byLocal, "cookie": byCookie} {
		begin := make(chan struct{})
		var all sync.WaitGroup
		for range reports {
			all.Go(func() {
				<-begin
				if results, err := b.agent.Judge(context.Background(), r); err != nil || len(results) != 1 || results[0].Action != agent.ActionNone {
					t.Errorf("by %s: %+v, %v", name, results, err)
				}
			})
		}
		close(begin)
		all.Wait()
	}
}
