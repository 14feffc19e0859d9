// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"net"
	"net/netip"
	"testing"
	"time"

	nl "github.com/vishvananda/netlink"

	"github.com/sockhealth/sockhealth/internal/agent"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

// TestRecycledAddress: the peer is gone and its address is another host's, which has
// no such connection. It says so, or where it does not take packets for that address
// yet, nobody answers. A connection to that host by the address of its own lives.
func TestRecycledAddress(t *testing.T) {
	b := newBed(t, patient+"  - {name: heir, cidrs: [10.91.3.0/24]}\n")
	ln := labtest.Listen(t, b.Server, netip.AddrPortFrom(b.ServerAddr4, 7100))
	heir := b.Servers[1]
	told := labtest.Dial(t, b.Client, netip.AddrPort{}, labtest.Addr(ln.Addr()))
	exchange(t, told, labtest.Accept(t, ln))
	untold := labtest.Dial(t, b.Client, netip.AddrPort{}, labtest.Addr(ln.Addr()))
	exchange(t, untold, labtest.Accept(t, ln))
	live, livePeer := labtest.PairTo(t, labtest.Dialer{NS: b.Client}, heir.NS, netip.AddrPortFrom(heir.Addr4, 7100))
	exchange(t, live, livePeer)

	in(t, b.Router, func() error {
		return nl.RouteAdd(&nl.Route{Dst: nl.NewIPNet(b.ServerAddr4.AsSlice()), Gw: heir.Addr4.AsSlice()})
	})
	address := &nl.Addr{IPNet: nl.NewIPNet(b.ServerAddr4.AsSlice())}
	lo := &nl.Device{LinkAttrs: nl.LinkAttrs{Name: "lo", Index: 1}}
	in(t, heir.NS, func() error { return nl.AddrAdd(lo, address) })
	b.silent(t, b.Client, told, 1200*time.Millisecond)
	wantVerdict(t, b.judge(t, report(b.Client, told, 0)), verdict.ClosedByPeer, "", agent.ActionNone)

	in(t, heir.NS, func() error { return nl.AddrDel(lo, address) })
	b.silent(t, b.Client, untold, 1200*time.Millisecond)
	wantVerdict(t, b.judge(t, report(b.Client, untold, 0)), verdict.DeadPath, "", agent.ActionClosed)
	wantAborted(t, untold)
	wantVerdict(t, b.judge(t, report(b.Client, live, 0)), verdict.AliveSlow, "", agent.ActionNone)
	wantWorks(t, live, livePeer)
}

// TestRestartedPeer: the peer's kernel has lost the connection, with data in flight to
// it or without, and its server listens again at the same address. The probe is
// answered with a RST; a new connection works.
func TestRestartedPeer(t *testing.T) {
	b := newBed(t, patient)
	at := netip.AddrPortFrom(b.ServerAddr4, 7100)
	ln := labtest.Listen(t, b.Server, at)
	idle := labtest.Dial(t, b.Client, netip.AddrPort{}, at)
	idlePeer := labtest.Accept(t, ln)
	exchange(t, idle, idlePeer)
	waiting := labtest.Dial(t, b.Client, netip.AddrPort{}, at)
	waitingPeer := labtest.Accept(t, ln)
	exchange(t, waiting, waitingPeer)

	fault := labtest.Fault(t)(b.DropPort(at.Port()))
	waiting.Write([]byte("request"))
	for _, c := range []*net.TCPConn{idlePeer, waitingPeer} {
		c.SetLinger(0)
		c.Close()
	}
	ln.Close()
	ln = labtest.Listen(t, b.Server, at)
	// The next one is then 6.4 s away: it is the probe that is answered.
	labtest.Eventually(t, 3*late, func() bool { return labtest.TCPInfo(t, waiting).Retransmits >= 5 }, "retransmissions")
	labtest.Heal(t, fault)
	wantVerdict(t, b.judge(t, report(b.Client, waiting, 0)), verdict.ClosedByPeer, "", agent.ActionNone)
	b.silent(t, b.Client, idle, 1200*time.Millisecond)
	wantVerdict(t, b.judge(t, report(b.Client, idle, 0)), verdict.ClosedByPeer, "", agent.ActionNone)

	again := labtest.Dial(t, b.Client, netip.AddrPort{}, at)
	exchange(t, again, labtest.Accept(t, ln))
}
