// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	nl "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/agent"
	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/sockets"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

// oneWay are the packets of a connection's one direction.
func oneWay(from, to net.Addr) lab.Match {
	a, b := labtest.Addr(from), labtest.Addr(to)
	return lab.Match{Src: lab.Only(a.Addr()), SrcPort: a.Port(), Dst: lab.Only(b.Addr()), DstPort: b.Port()}
}

// judgeEach reports on connections side by side, and wants one verdict of each.
func (b *bed) judgeEach(t *testing.T, clients []*net.TCPConn, want verdict.Word, action agent.Action) {
	t.Helper()
	var all sync.WaitGroup
	for i, c := range clients {
		all.Go(func() {
			r, err := b.agent.Judge(t.Context(), report(b.Client, c, 0))
			if err != nil || len(r) != 1 || r[0].Verdict != want || r[0].Action != action {
				t.Errorf("connection %d: %+v, %v; want %s, %s", i, r, err, want, action)
			}
		})
	}
	all.Wait()
}

// TestSilentPaths: whatever becomes of the packets, where nothing comes back the
// path is dead, idle and in flight: one direction dropped, or the other, or an ICMP
// message in place of an answer, which proves neither life nor death.
func TestSilentPaths(t *testing.T) {
	b := newBed(t, patient)
	ln := labtest.Listen(t, b.Server, netip.AddrPortFrom(b.ServerAddr4, 7100))
	var clients []*net.TCPConn
	for _, fault := range []func(c, s *net.TCPConn) (*lab.Fault, error){
		func(c, s *net.TCPConn) (*lab.Fault, error) { return b.Drop(oneWay(c.LocalAddr(), c.RemoteAddr())) },
		func(c, s *net.TCPConn) (*lab.Fault, error) { return b.Drop(oneWay(c.RemoteAddr(), c.LocalAddr())) },
		func(c, s *net.TCPConn) (*lab.Fault, error) {
			return b.Unreachable(oneWay(c.LocalAddr(), c.RemoteAddr()))
		},
	} {
		for _, inFlight := range []bool{false, true} {
			c := labtest.Dial(t, b.Client, netip.AddrPort{}, labtest.Addr(ln.Addr()))
			s := labtest.Accept(t, ln)
			exchange(t, c, s)
			labtest.Fault(t)(fault(c, s))
			if inFlight {
				c.Write([]byte("request"))
			}
			clients = append(clients, c)
		}
	}
	bystander, bystanderPeer := labtest.Pair(t, b.Lab, 0)
	exchange(t, bystander, bystanderPeer)
	b.judgeEach(t, clients, verdict.DeadPath, agent.ActionClosed)
	for _, c := range clients {
		wantAborted(t, c)
	}
	wantWorks(t, bystander, bystanderPeer)
}

// TestLostOnTheWay: two of three attempts are lost, or fewer, questions and answers,
// and the connection stays.
func TestLostOnTheWay(t *testing.T) {
	b := newBed(t, patient)
	ln := labtest.Listen(t, b.Server, netip.AddrPortFrom(b.ServerAddr4, 7100))
	var clients, servers []*net.TCPConn
	held := map[*net.TCPConn]*lab.Fault{} // by the server's end: what keeps data in flight
	const question = 500
	for _, inFlight := range []bool{false, true} {
		for _, lost := range []struct{ questions, answers uint32 }{{0, 0}, {1, 0}, {0, 1}, {2, 0}, {1, 1}, {0, 2}} {
			c := labtest.Dial(t, b.Client, netip.AddrPort{}, labtest.Addr(ln.Addr()))
			s := labtest.Accept(t, ln)
			exchange(t, c, s)
			b.silent(t, b.Client, c, 100*time.Millisecond) // the last ACK has come
			clients, servers = append(clients, c), append(servers, s)
			there, back := oneWay(c.LocalAddr(), c.RemoteAddr()), oneWay(c.RemoteAddr(), c.LocalAddr())
			if inFlight {
				long := there
				long.MinLen = 150 // so that our probes alone are answered
				held[s] = labtest.Fault(t)(b.Drop(long))
				c.Write(make([]byte, question))
			}
			there.MaxLen = 100
			if lost.questions > 0 {
				labtest.Fault(t)(b.DropFirst(there, lost.questions))
			}
			if lost.answers > 0 {
				labtest.Fault(t)(b.DropFirst(back, lost.answers))
			}
		}
	}
	b.judgeEach(t, clients, verdict.AliveSlow, agent.ActionNone)
	for i, s := range servers {
		if s := labtest.State(t, clients[i]); s != conn.Established {
			t.Errorf("connection %d is %s", i, s)
		}
		if fault := held[s]; fault != nil {
			labtest.Heal(t, fault)
		}
	}
	for i, s := range servers {
		if held[s] != nil {
			s.SetReadDeadline(time.Now().Add(2 * late)) // the kernel's own timer has backed off
			if _, err := io.ReadFull(s, make([]byte, question)); err != nil {
				t.Errorf("connection %d: what was in flight: %v", i, err)
			}
		}
		wantWorks(t, s, clients[i])
	}
}

// TestMiddleboxReset: a middlebox that has forgotten the connection answers the
// probe with a RST, and the kernel closes it: nothing is left to do.
func TestMiddleboxReset(t *testing.T) {
	b := newBed(t, patient)
	client, server := labtest.Pair(t, b.Lab, 0)
	exchange(t, client, server)
	labtest.Fault(t)(b.RejectReset(oneWay(client.LocalAddr(), client.RemoteAddr())))
	b.silent(t, b.Client, client, 1200*time.Millisecond)
	wantVerdict(t, b.judge(t, report(b.Client, client, time.Second)), verdict.ClosedByPeer, "", agent.ActionNone)
	client.SetReadDeadline(time.Now().Add(late))
	if _, err := io.ReadAll(client); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("read ended with %v, want ECONNRESET", err)
	}
}

// TestHalfClosed: who has said all and waits for the answer gets it.
func TestHalfClosed(t *testing.T) {
	b := newBed(t, patient)
	client, server := labtest.Pair(t, b.Lab, 0)
	exchange(t, client, server)
	client.Write([]byte("request"))
	client.CloseWrite()
	labtest.Eventually(t, late, func() bool { return labtest.State(t, client) == conn.FinWait2 }, "the FIN to be acknowledged")
	for range 2 {
		r := b.judge(t, report(b.Client, client, 0))
		wantVerdict(t, r, verdict.AliveSlow, "", agent.ActionNone)
	}
	server.Write([]byte("answer"))
	client.SetReadDeadline(time.Now().Add(late))
	buf := make([]byte, 6)
	if _, err := io.ReadFull(client, buf); err != nil || string(buf) != "answer" {
		t.Errorf("read %q, %v", buf, err)
	}
}

// TestBackedOff: an outage is over, and the kernel's own next retransmission is
// seconds away. The probe finds out that the path is well.
func TestBackedOff(t *testing.T) {
	b := newBed(t, patient)
	client, server := labtest.Pair(t, b.Lab, 0)
	exchange(t, client, server)
	fault := labtest.Fault(t)(b.DropPort(labtest.Addr(server.LocalAddr()).Port()))
	client.Write([]byte("request"))
	r := report(b.Client, client, 0)
	labtest.Eventually(t, 2*late, func() bool { return labtest.TCPInfo(t, client).Retransmits >= 4 }, "retransmissions")
	labtest.Heal(t, fault)
	wantVerdict(t, b.judge(t, r), verdict.AliveSlow, "", agent.ActionNone)
	server.SetReadDeadline(time.Now().Add(2 * late))
	if _, err := io.ReadFull(server, make([]byte, 7)); err != nil {
		t.Errorf("the request: %v", err)
	}
	wantWorks(t, server, client)
}

// TestUpload: a peer that answers nothing while it takes what is sent, slowly,
// lives.
func TestUpload(t *testing.T) {
	b := newBed(t, patient)
	client, server := labtest.Pair(t, b.Lab, 0)
	exchange(t, client, server)
	in(t, b.Router, func() error { // 60 kB/s, and no queue that could hide it
		link, err := nl.LinkByName("net2")
		if err != nil {
			return err
		}
		return nl.QdiscAdd(&nl.Tbf{
			QdiscAttrs: nl.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: nl.MakeHandle(1, 0), Parent: nl.HANDLE_ROOT},
			Rate:       60000, Limit: 20000, Buffer: 1562500,
		})
	})
	const size = 120_000
	sent := report(b.Client, client, 0)
	go client.Write(make([]byte, size))
	got := make(chan error, 1)
	go func() {
		server.SetReadDeadline(time.Now().Add(4 * late))
		_, err := io.ReadFull(server, make([]byte, size))
		got <- err
	}()
	judged := 0
	for {
		select {
		case err := <-got:
			if err != nil || judged == 0 {
				t.Errorf("upload: %v, judged %d times meanwhile", err, judged)
			}
			wantWorks(t, server, client)
			return
		default:
		}
		r := b.judge(t, sent)
		if r.Evidence.InFlight {
			judged++
		}
		wantVerdict(t, r, verdict.AliveSlow, "", agent.ActionNone)
	}
}

func in(t *testing.T, ns *netns.NS, fn func() error) {
	t.Helper()
	if err := ns.Do(fn); err != nil {
		t.Fatal(err)
	}
}

// TestLocalFaults: where this host itself has no way out, or keeps its own
// segments, nothing is closed.
func TestLocalFaults(t *testing.T) {
	b := newBed(t, patient)
	client, server := labtest.Pair(t, b.Lab, 0)
	exchange(t, client, server)
	six, sixPeer := labtest.PairTo(t, labtest.Dialer{NS: b.Client}, b.Server, netip.AddrPortFrom(b.ServerAddr6, 0))
	exchange(t, six, sixPeer)
	judge := func(word verdict.Word, reason string) {
		t.Helper()
		b.silent(t, b.Client, client, 1200*time.Millisecond)
		wantVerdict(t, b.judge(t, report(b.Client, client, 0)), word, reason, agent.ActionNone)
	}

	lift := labtest.BlockRoot(t, b.Client)
	judge(verdict.Unknown, verdict.ReasonProbeBlocked)
	lift()

	all := &nl.Route{Dst: &net.IPNet{IP: make(net.IP, 4), Mask: make(net.IPMask, 4)}}
	in(t, b.Client, func() error { return nl.RouteDel(all) })
	judge(verdict.LocalFault, verdict.ReasonNoRoute)
	in(t, b.Client, func() error {
		all.Gw = net.IPv4(10, 91, 1, 1)
		return nl.RouteAdd(all)
	})
	wantWorks(t, client, server)

	far := func(set func(nl.Link) error) {
		in(t, b.Router, func() error {
			link, err := nl.LinkByName("net1")
			if err != nil {
				return err
			}
			return set(link)
		})
	}
	far(nl.LinkSetDown) // and with it the client's carrier
	judge(verdict.LocalFault, verdict.ReasonNoCarrier)
	far(nl.LinkSetUp)
	wantWorks(t, client, server)

	in(t, b.Client, func() error { // its routes go with it, and its IPv6 address
		link, err := nl.LinkByName("eth0")
		if err != nil {
			return err
		}
		return nl.LinkSetDown(link)
	})
	judge(verdict.LocalFault, verdict.ReasonNoCarrier)
	if _, err := six.Write([]byte("request")); err != nil {
		t.Fatal(err)
	}
	wantVerdict(t, b.judge(t, report(b.Client, six, 0)), verdict.LocalFault, verdict.ReasonNoCarrier, agent.ActionNone)
}

// TestProxyAnswers: the path to the peer is dropped, and a proxy on this host goes
// on answering for it. That is no life, and nothing to close. A peer on this host
// answers for itself.
func TestProxyAnswers(t *testing.T) {
	b := newBed(t, patient+"  - {name: here, cidrs: [10.91.1.2/32], direction: outbound}\n")
	near, nearPeer := labtest.PairTo(t, labtest.Dialer{NS: b.Client}, b.Client, netip.AddrPortFrom(b.ClientAddr4, 7103))
	exchange(t, near, nearPeer)

	labtest.Redirect(t, b.Client, 7102, 15001)
	proxy := labtest.Listen(t, b.Client, netip.MustParseAddrPort("0.0.0.0:15001"))
	caught := labtest.Dial(t, b.Client, netip.AddrPort{}, netip.AddrPortFrom(b.ServerAddr4, 7102))
	taken := labtest.Accept(t, proxy)
	exchange(t, caught, taken)
	labtest.Fault(t)(b.Drop(lab.Match{}))
	caught.Write([]byte("request"))
	io.ReadFull(taken, make([]byte, 7))
	s := sockets.New(b.Programs)
	labtest.Eventually(t, late, func() bool {
		snap, err := s.Get(b.Client, labtest.Addr(caught.LocalAddr()), labtest.Addr(caught.RemoteAddr()))
		return err == nil && snap.DataAge > 50*time.Millisecond
	}, "payload to be older than the call")
	wantVerdict(t, b.judge(t, report(b.Client, caught, 0)), verdict.Unknown, verdict.ReasonLocalLeg, agent.ActionNone)
	wantWorks(t, taken, caught)

	wantVerdict(t, b.judge(t, report(b.Client, near, 0)), verdict.AliveSlow, "", agent.ActionNone)
	wantWorks(t, near, nearPeer)
}
