// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/agent"
	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

// fixed are namespaces that the agent covers.
type fixed []*netns.NS

func (f fixed) All() []*netns.NS {
	var all []*netns.NS
	for _, ns := range f {
		if own, err := ns.Dup(); err == nil {
			all = append(all, own)
		}
	}
	return all
}

// TestFrozenNode: of six peers, all connections to which idle, one falls silent and
// its connection is closed; then all do and none is closed, until they are heard again.
func TestFrozenNode(t *testing.T) {
	const peers = 6
	opts := lab.Options{}
	for i := range byte(peers - 1) {
		opts.ServerAddrs = append(opts.ServerAddrs, netip.AddrFrom4([4]byte{10, 91, 2, 3 + i}))
	}
	b := (&bed{lab: opts}).start(t, patient)
	b.agent.Namespaces = fixed{b.Router, b.Client}
	addrs := append([]netip.Addr{b.ServerAddr4}, opts.ServerAddrs...)
	clients, servers := make([]*net.TCPConn, peers), make([]*net.TCPConn, peers)
	dial := func(i int) {
		clients[i], servers[i] = labtest.PairTo(t, labtest.Dialer{NS: b.Client}, b.Server, netip.AddrPortFrom(addrs[i], 0))
		exchange(t, clients[i], servers[i])
	}
	for i := range peers {
		dial(i)
	}
	one := func(i int) {
		t.Helper()
		before := b.destroyed(t)
		fault := labtest.Fault(t)(b.Drop(lab.Match{Dst: lab.Only(addrs[i]), Both: true}))
		for _, c := range clients {
			b.silent(t, b.Client, c, 1200*time.Millisecond)
		}
		wantVerdict(t, b.judge(t, report(b.Client, clients[i], time.Second)), verdict.DeadPath, "", agent.ActionClosed)
		wantAborted(t, clients[i])
		if n := b.destroyed(t) - before; n != 1 || !b.agent.Stats().Frozen.IsZero() {
			t.Errorf("%d closed; %+v", n, b.agent.Stats())
		}
		labtest.Heal(t, fault)
		dial(i)
		for i := range peers {
			wantWorks(t, clients[i], servers[i])
		}
	}

	one(0)

	frozenWhole(t, b, clients, servers, netip.PrefixFrom(addrs[0], 24).Masked())

	one(3)
}

// frozenWhole has all peers of a prefix fall silent, and come back.
func frozenWhole(t *testing.T, b *bed, clients, servers []*net.TCPConn, peers netip.Prefix) {
	t.Helper()
	before := b.destroyed(t)
	fault := labtest.Fault(t)(b.Drop(lab.Match{Dst: peers, Both: true}))
	for _, c := range clients {
		b.silent(t, b.Client, c, 1200*time.Millisecond)
	}
	var all sync.WaitGroup
	for _, c := range clients {
		all.Go(func() {
			r, err := b.agent.Judge(context.Background(), report(b.Client, c, time.Second))
			if err != nil || len(r) != 1 || r[0].Verdict != verdict.DeadPath || r[0].Action != agent.ActionFrozen {
				t.Errorf("%+v, %v; want dead_path, frozen", r, err)
			}
		})
	}
	all.Wait()
	if n := b.destroyed(t) - before; n != 0 || b.agent.Stats().Frozen.IsZero() {
		t.Errorf("%d closed; %+v", n, b.agent.Stats())
	}
	labtest.Heal(t, fault)
	labtest.Eventually(t, 10*time.Second+late, func() bool { return b.agent.Stats().Frozen.IsZero() }, "the end of the freeze")
	for i := range clients {
		wantWorks(t, clients[i], servers[i])
	}
	if n := b.destroyed(t) - before; n != 0 {
		t.Errorf("%d closed", n)
	}
}
