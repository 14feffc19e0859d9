// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/agent"
	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

// pool opens n connections to one address that have all been used.
func (b *bed) pool(t *testing.T, n int) (clients, servers []*net.TCPConn) {
	t.Helper()
	return b.poolTo(t, n, 7100)
}

// poolTo is pool to another port.
func (b *bed) poolTo(t *testing.T, n int, port uint16) (clients, servers []*net.TCPConn) {
	t.Helper()
	ln := labtest.Listen(t, b.Server, netip.AddrPortFrom(b.ServerAddr4, port))
	for range n {
		clients = append(clients, labtest.Dial(t, b.Client, netip.AddrPort{}, labtest.Addr(ln.Addr())))
		servers = append(servers, labtest.Accept(t, ln))
		exchange(t, clients[len(clients)-1], servers[len(servers)-1])
	}
	return clients, servers
}

// TestPool: one report about one of 200 connections to a dead peer ends them
// all: two attempts until the others are asked, too, and a window of their own.
func TestPool(t *testing.T) {
	b := newBed(t, patient)
	clients, _ := b.pool(t, 200)
	labtest.Fault(t)(b.DropPort(7100))
	b.silent(t, b.Client, clients[199], 1200*time.Millisecond)
	began := time.Now()
	wantVerdict(t, b.judge(t, report(b.Client, clients[0], time.Second)), verdict.DeadPath, "", agent.ActionClosed)
	for _, c := range clients {
		c.SetReadDeadline(began.Add(time.Minute)) // 50 a second are closed, and each is judged
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNABORTED) {
			t.Fatalf("%s: %v after %v, want ECONNABORTED", c.LocalAddr(), err, time.Since(began))
		}
	}
	t.Logf("200 closed within %v of the report; two attempts, a window and a second are 3.6s", time.Since(began))
}

// TestStormWhileThePathHeals: everybody reports at once, and the path is well
// again before the window is over. Nobody loses a connection.
func TestStormWhileThePathHeals(t *testing.T) {
	b := newBed(t, strings.Replace(patient, "window: 1500ms", "window: 10s", 1)) // all are to begin in it
	clients, servers := b.pool(t, 50)
	fault := labtest.Fault(t)(b.DropPort(7100))
	b.silent(t, b.Client, clients[49], 1200*time.Millisecond)
	var all sync.WaitGroup
	for _, c := range clients {
		all.Go(func() {
			r, err := b.agent.Judge(context.Background(), report(b.Client, c, time.Second))
			if err != nil || len(r) != 1 || r[0].Verdict != verdict.AliveSlow || r[0].Action != agent.ActionNone {
				t.Errorf("%v, %v; want alive_slow", r, err)
			}
		})
	}
	labtest.Eventually(t, late, func() bool { return b.agent.Stats().Judgements == len(clients) }, "all to be under judgement")
	labtest.Heal(t, fault)
	all.Wait()
	for i := range clients {
		wantWorks(t, clients[i], servers[i])
	}
}

// TestFlatMemory: the agent keeps nothing of 100,000 reports but its journal.
func TestFlatMemory(t *testing.T) {
	b := newBed(t, patient)
	client, server := labtest.Pair(t, b.Lab, 0)
	r := report(b.Client, client, 0)
	labtest.Eventually(t, late, func() bool { return conn.Now()-r.Sent > 50*time.Millisecond }, "a call older than a tick")
	exchange(t, client, server) // so that each verdict is alive, or costs one probe
	nobody := agent.Report{Caller: r.Caller, Local: r.Peer, Peer: r.Local}
	judge := func(n int) {
		for i := range n {
			if _, err := b.agent.Judge(context.Background(), r); err != nil {
				t.Fatal(err)
			}
			if i%10 == 0 {
				if _, err := b.agent.Judge(context.Background(), nobody); err != nil {
					t.Fatal(err)
				}
				server.Write([]byte("x")) // life, so that no probe is needed
				client.Read(make([]byte, 1))
			}
		}
	}
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	judge(labtest.Fewer(1_500)) // fills the journal, which is small beside the limit
	before := heap()
	judge(labtest.Fewer(98_500))
	if after := heap(); after > before+2<<20 {
		t.Errorf("heap grew from %d to %d bytes over them", before, after)
	}
}
