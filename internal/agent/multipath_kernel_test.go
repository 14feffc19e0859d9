// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	nl "github.com/vishvananda/netlink"

	"github.com/sockhealth/sockhealth/internal/agent"
	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

// hops are two next hops of the client's, equal, on one device: the router, by two
// addresses. The kernel chooses by a connection's ports.
var hops = [2]net.IP{net.IPv4(10, 91, 1, 1), net.IPv4(10, 91, 1, 77)}

// multipath makes them. works says which of them forward what they get: where one does not
// nobody hears of it, as beyond a link that has failed.
func (b *bed) multipath(t *testing.T) (works func(first, second bool)) {
	t.Helper()
	var router net.HardwareAddr
	in(t, b.Router, func() error {
		link, err := nl.LinkByName("net1")
		if err != nil {
			return err
		}
		router = link.Attrs().HardwareAddr
		return nl.AddrAdd(link, &nl.Addr{IPNet: &net.IPNet{IP: hops[1], Mask: net.CIDRMask(24, 32)}})
	})
	in(t, b.Client, func() error {
		link, err := nl.LinkByName("eth0")
		if err != nil {
			return err
		}
		all := &nl.Route{Dst: &net.IPNet{IP: make(net.IP, 4), Mask: make(net.IPMask, 4)}}
		for _, hop := range hops {
			all.MultiPath = append(all.MultiPath, &nl.NexthopInfo{LinkIndex: link.Attrs().Index, Gw: hop})
		}
		return errors.Join(os.WriteFile("/proc/sys/net/ipv4/fib_multipath_hash_policy", []byte("1"), 0), nl.RouteReplace(all))
	})
	return func(first, second bool) {
		t.Helper()
		in(t, b.Client, func() error {
			link, err := nl.LinkByName("eth0")
			for i, forwards := range [2]bool{first, second} {
				mac := net.HardwareAddr{2, 0, 0, 0, 0, 0x77} // nobody's
				if forwards {
					mac = router
				}
				err = errors.Join(err, nl.NeighSet(&nl.Neigh{
					LinkIndex: link.Attrs().Index, State: nl.NUD_PERMANENT, IP: hops[i], HardwareAddr: mac,
				}))
			}
			return err
		})
	}
}

// through opens a connection by the one next hop that works.
func (b *bed) through(t *testing.T) (client, server *net.TCPConn) {
	t.Helper()
	ln := labtest.Listen(t, b.Server, netip.AddrPortFrom(b.ServerAddr4, 0))
	d := labtest.Dialer{NS: b.Client, Timeout: 500 * time.Millisecond}
	labtest.Eventually(t, time.Minute, func() bool {
		var err error
		client, err = d.Try(labtest.Addr(ln.Addr()))
		return err == nil // else its ports lead by the other one
	}, "a connection by that next hop")
	t.Cleanup(func() { client.Close() })
	server = labtest.Accept(t, ln)
	exchange(t, client, server)
	return client, server
}

// byEach opens a connection by each next hop. Both work then.
func (b *bed) byEach(t *testing.T, works func(first, second bool)) (clients, servers [2]*net.TCPConn) {
	t.Helper()
	for i := range clients {
		works(i == 0, i == 1)
		clients[i], servers[i] = b.through(t)
	}
	works(true, true)
	return clients, servers
}

// TestMultipath: of two next hops, chosen by the ports, one does not work. A connection by
// the other one is never closed, although segments of ours may leave by the first, and what
// the kernel itself has lost in an outage that is over counts against it. One by the first
// is dead by the kernel's own keepalives, or unknown where segments of ours were answered,
// and never said to live.
func TestMultipath(t *testing.T) {
	b := newBed(t, patient)
	works := b.multipath(t)
	clients, servers := b.byEach(t, works)
	var reports [2]agent.Report
	heal := b.outage(t, servers[:]...)
	for i, c := range clients {
		c.Write([]byte("request"))
		reports[i] = report(b.Client, c, 0)
	}
	// The next one is then 6.4 s away, and tells nothing in the window.
	labtest.Eventually(t, 3*late, func() bool {
		return labtest.TCPInfo(t, clients[0]).Retransmits >= 5 && labtest.TCPInfo(t, clients[1]).Retransmits >= 5
	}, "retransmissions")
	heal()
	for i, r := range reports { // by the next hop that works
		works(i == 0, i == 1)
		wantVerdict(t, b.judge(t, r), verdict.Unknown, verdict.ReasonMultipath, agent.ActionNone)
	}
	works(true, true)
	for i, s := range servers {
		s.SetReadDeadline(time.Now().Add(2 * late))
		if _, err := io.ReadFull(s, make([]byte, 7)); err != nil {
			t.Errorf("the request by next hop %d: %v", i, err)
		}
		wantWorks(t, s, clients[i])
	}

	uncertain := 0
	for i := range hops {
		clients, servers := b.byEach(t, works)
		works(i == 0, i == 1)
		live, dead := clients[i], clients[1-i]
		b.silent(t, b.Client, dead, 1200*time.Millisecond)
		if !loadertest.Has(t, b.Programs, kernel.Provoke) { // too few keepalives come by themselves
			b.judgeEach(t, []*net.TCPConn{live}, verdict.AliveSlow, agent.ActionNone)
			break
		}
		b.judgeEach(t, []*net.TCPConn{live}, verdict.AliveSlow, agent.ActionNone)
		switch r := b.judge(t, report(b.Client, dead, 0)); r.Verdict {
		case verdict.Unknown:
			uncertain++
			wantVerdict(t, r, verdict.Unknown, verdict.ReasonMultipath, agent.ActionNone)
		default:
			wantVerdict(t, r, verdict.DeadPath, "", agent.ActionClosed)
			wantAborted(t, dead)
		}
		wantWorks(t, servers[i], live)
	}
	if uncertain > 1 { // segments of ours all leave by one of the two
		t.Error("both are unknown")
	}
}

// outage loses what goes to and comes from ends of the server's, until it is healed.
func (b *bed) outage(t *testing.T, ends ...*net.TCPConn) (heal func()) {
	t.Helper()
	var healing []func()
	for _, s := range ends {
		fault := labtest.Fault(t)(b.DropPort(labtest.Addr(s.LocalAddr()).Port()))
		healing = append(healing, func() { labtest.Heal(t, fault) })
	}
	return func() {
		for _, one := range healing {
			one()
		}
	}
}
