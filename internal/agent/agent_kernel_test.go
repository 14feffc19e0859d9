// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/agent"
	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

func TestDeadPathIdle(t *testing.T) {
	b := newBed(t, patient)
	client, server := labtest.Pair(t, b.Lab, 0)
	bystander, bystanderPeer := labtest.Pair(t, b.Lab, 0)
	exchange(t, client, server)
	exchange(t, bystander, bystanderPeer)
	labtest.Fault(t)(b.StateLoss(labtest.Addr(client.LocalAddr()), labtest.Addr(client.RemoteAddr())))
	b.silent(t, b.Client, client, 1200*time.Millisecond)
	// That a new connection to the same address works is no sign of life.
	ln := labtest.Listen(t, b.Server, labtest.Addr(client.RemoteAddr()))
	labtest.Dial(t, b.Client, netip.AddrPort{}, labtest.Addr(ln.Addr()))
	r := b.judge(t, report(b.Client, client, 500*time.Millisecond))
	wantVerdict(t, r, verdict.DeadPath, "", agent.ActionClosed)
	wantDelivery(t, r, verdict.NoRequest, 0, 0)
	if r.Policy != "server" || r.Evidence.ProbesSent < 3 || r.Duration < 1500*time.Millisecond {
		t.Errorf("result %+v", r)
	}
	wantAborted(t, client)
	wantWorks(t, bystander, bystanderPeer)
}

func TestDeadPathInFlight(t *testing.T) {
	b := newBed(t, patient)
	client, server := labtest.Pair(t, b.Lab, 0)
	exchange(t, client, server)
	labtest.Fault(t)(b.DropPort(labtest.Addr(server.LocalAddr()).Port()))
	client.Write([]byte("request"))
	r := b.judge(t, report(b.Client, client, 0))
	wantVerdict(t, r, verdict.DeadPath, "", agent.ActionClosed)
	wantDelivery(t, r, verdict.Unacknowledged, 7, 0)
	wantAborted(t, client)
}

// TestDeadAfterAck: the request was acknowledged, then everything dropped. The
// ACK is no sign of life.
func TestDeadAfterAck(t *testing.T) {
	b := newBed(t, patient)
	client, server := labtest.Pair(t, b.Lab, 0)
	exchange(t, client, server)
	client.Write([]byte("request"))
	io.ReadFull(server, make([]byte, 7))
	acknowledged(t, client)
	labtest.Fault(t)(b.DropPort(labtest.Addr(server.LocalAddr()).Port()))
	r := b.judge(t, report(b.Client, client, 0))
	wantVerdict(t, r, verdict.DeadPath, "", agent.ActionClosed)
	wantDelivery(t, r, verdict.Acknowledged, 0, 0)
	wantAborted(t, client)
}

func TestSlowAnswer(t *testing.T) {
	b := newBed(t, patient)
	client, server := labtest.Pair(t, b.Lab, 0)
	exchange(t, client, server)
	want := labtest.Options(t, client)
	client.Write([]byte("request"))
	io.ReadFull(server, make([]byte, 7))
	for _, quiet := range []time.Duration{0, 1200 * time.Millisecond} {
		b.silent(t, b.Client, client, quiet)
		r := b.judge(t, report(b.Client, client, quiet))
		wantVerdict(t, r, verdict.AliveSlow, "", agent.ActionNone)
		if !r.Evidence.ProbeAnswered || r.Evidence.PayloadSinceCall {
			t.Errorf("evidence %+v", r.Evidence)
		}
	}
	wantWorks(t, server, client)
	labtest.Eventually(t, late, func() bool { return labtest.Options(t, client) == want }, "options as before the probe")
}

func TestAnswerArrived(t *testing.T) {
	b := newBed(t, patient)
	client, server := labtest.Pair(t, b.Lab, 0)
	sent := conn.Now()
	exchange(t, client, server)
	labtest.Eventually(t, late, func() bool { return conn.Now()-sent > 50*time.Millisecond }, "a call older than a tick")
	server.Write([]byte("answer"))
	io.ReadFull(client, make([]byte, 6))
	r := report(b.Client, client, 0)
	r.Sent = sent
	wantVerdict(t, b.judge(t, r), verdict.Alive, "", agent.ActionNone)
	server.Write([]byte("answer"))
	labtest.Eventually(t, late, func() bool {
		n := b.judge(t, r)
		return n.Verdict == verdict.LocalUnread && n.Evidence.Unread == 6
	}, "the unread answer")
}

func TestFinAndReset(t *testing.T) {
	b := newBed(t, patient)
	client, server := labtest.Pair(t, b.Lab, 0)
	exchange(t, client, server)
	server.Close()
	labtest.Eventually(t, late, func() bool { return labtest.State(t, client) == conn.CloseWait }, "the FIN")
	r := b.judge(t, report(b.Client, client, time.Second))
	wantVerdict(t, r, verdict.ClosedByPeer, "", agent.ActionNone)
	if e := r.Evidence; e.BytesReceived != uint64(len("still here")) || e.Unread != 0 {
		t.Errorf("evidence %+v; a FIN's byte is no payload", e)
	}

	// A peer that has lost the connection answers the probe with a RST.
	client, server = labtest.Pair(t, b.Lab, 0)
	exchange(t, client, server)
	fault := labtest.Fault(t)(b.DropPort(labtest.Addr(server.LocalAddr()).Port()))
	server.SetLinger(0)
	server.Close()
	labtest.Heal(t, fault)
	b.silent(t, b.Client, client, 1200*time.Millisecond)
	wantVerdict(t, b.judge(t, report(b.Client, client, time.Second)), verdict.ClosedByPeer, "", agent.ActionNone)
	client.SetReadDeadline(time.Now().Add(late))
	if _, err := io.ReadAll(client); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("read ended with %v, want ECONNRESET", err)
	}
}

// TestSweep: siblings of a silent socket are judged each alone.
func TestSweep(t *testing.T) {
	b := newBed(t, patient)
	ln := labtest.Listen(t, b.Server, netip.AddrPortFrom(b.ServerAddr4, 7100))
	var clients, servers []*net.TCPConn
	for range 5 {
		clients = append(clients, labtest.Dial(t, b.Client, netip.AddrPort{}, labtest.Addr(ln.Addr())))
		servers = append(servers, labtest.Accept(t, ln))
		exchange(t, clients[len(clients)-1], servers[len(servers)-1])
	}
	other, otherPeer := labtest.Pair(t, b.Lab, 7200)
	exchange(t, other, otherPeer)
	for _, c := range clients[:4] {
		labtest.Fault(t)(b.StateLoss(labtest.Addr(c.LocalAddr()), labtest.Addr(c.RemoteAddr())))
	}
	b.silent(t, b.Client, other, 1200*time.Millisecond)
	began := time.Now()
	wantVerdict(t, b.judge(t, report(b.Client, clients[0], time.Second)), verdict.DeadPath, "", agent.ActionClosed)
	for _, c := range clients[:4] {
		wantAborted(t, c)
	}
	t.Logf("four closed %v after the report", time.Since(began))
	wantWorks(t, clients[4], servers[4])
	wantWorks(t, other, otherPeer)
}

// TestOrphan: an application that closes first and reports then still helps the
// other connections to that peer.
func TestOrphan(t *testing.T) {
	b := newBed(t, patient)
	client, server := labtest.PairTo(t, labtest.Dialer{NS: b.Client}, b.Server, netip.AddrPortFrom(b.ServerAddr4, 7100))
	sibling, siblingPeer := labtest.PairTo(t, labtest.Dialer{NS: b.Client}, b.Server, netip.AddrPortFrom(b.ServerAddr4, 7100))
	exchange(t, client, server)
	exchange(t, sibling, siblingPeer)
	labtest.Fault(t)(b.DropPort(7100))
	client.Write([]byte("request"))
	r := report(b.Client, client, 0)
	client.Close()
	wantVerdict(t, b.judge(t, r), verdict.DeadPath, verdict.ReasonOrphan, agent.ActionNone)
	wantAborted(t, sibling)
}

// TestNotTheirs: nothing is closed, nor even seen, by who has no business there.
func TestNotTheirs(t *testing.T) {
	b := newBed(t, patient)
	client, server := labtest.Pair(t, b.Lab, 0)
	exchange(t, client, server)
	labtest.Fault(t)(b.DropPort(labtest.Addr(server.LocalAddr()).Port()))
	b.silent(t, b.Client, client, 1200*time.Millisecond)
	good := report(b.Client, client, time.Second)
	for name, spoil := range map[string]func(*agent.Report){
		"other user":       func(r *agent.Report) { r.Caller.UID = 12345 },
		"other namespace":  func(r *agent.Report) { r.Caller.NS = b.Router },
		"other cookie":     func(r *agent.Report) { r.Cookie = 1 << 60 },
		"cookie alone":     func(r *agent.Report) { r.Cookie, r.Local, r.Peer = 1<<60, netip.AddrPort{}, netip.AddrPort{} },
		"other peer":       func(r *agent.Report) { r.Peer = netip.AddrPortFrom(b.ServerAddr4, 1) },
		"other local port": func(r *agent.Report) { r.Local = netip.AddrPortFrom(b.ClientAddr4, 1) },
		"peer disagreeing": func(r *agent.Report) {
			r.Cookie, r.Peer = labtest.Cookie(t, client), netip.AddrPortFrom(b.ServerAddr4, 1)
		},
		"socket of a listen": func(r *agent.Report) { r.Local, r.Peer = r.Peer, r.Local },
	} {
		r := good
		spoil(&r)
		got := b.judge(t, r)
		if got.Verdict != verdict.Gone || got.Reason != verdict.ReasonNotFound || got.Action != agent.ActionNone ||
			got.Evidence != (verdict.Evidence{}) || got.Policy != "" {
			t.Errorf("%s: %+v; want gone, and nothing about the socket", name, got)
		}
	}
	// By cookie, and by local address alone, the right caller is heard.
	for _, r := range []agent.Report{
		{Caller: good.Caller, Sent: good.Sent, Cookie: labtest.Cookie(t, client)},
		{Caller: good.Caller, Sent: good.Sent, Local: good.Local},
	} {
		s, err := b.agent.Judge(canceled(), r)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("results %v, error %v; want the judgement to have begun", s, err)
		}
	}
	wantAborted(t, client) // although whoever asked has left
}

// TestInboundGone: after an inbound connection has ended, its tuple finds the
// listener, which is left alone.
func TestInboundGone(t *testing.T) {
	b := newBed(t, patient)
	ln := labtest.Listen(t, b.Server, netip.AddrPortFrom(b.ServerAddr4, 0))
	client := labtest.Dial(t, b.Client, netip.AddrPort{}, labtest.Addr(ln.Addr()))
	server := labtest.Accept(t, ln)
	r := report(b.Server, server, time.Second)
	wantVerdict(t, b.judge(t, r), verdict.AliveSlow, "", agent.ActionNone)
	client.Close()
	io.ReadAll(server)
	server.Close()
	labtest.Eventually(t, late, func() bool { return b.judge(t, r).Verdict == verdict.Gone }, "the verdict gone")
	again := labtest.Dial(t, b.Client, netip.AddrPort{}, labtest.Addr(ln.Addr()))
	wantWorks(t, again, labtest.Accept(t, ln))
}

func canceled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func TestUnmanaged(t *testing.T) {
	b := newBed(t, patient)
	labtest.Heal(t, labtest.Fault(t)(b.DropPort(1)))
	outside, _ := labtest.PairTo(t, labtest.Dialer{NS: b.Client}, b.Servers[1].NS, netip.AddrPortFrom(b.Servers[1].Addr4, 0))
	wantVerdict(t, b.judge(t, report(b.Client, outside, time.Second)), verdict.Unmanaged, verdict.ReasonNoPolicy, agent.ActionNone)
	if err := b.Cgroup.Leave(); err != nil {
		t.Fatal(err)
	}
	older, _ := labtest.Pair(t, b.Lab, 0)
	if err := b.Cgroup.Enter(); err != nil {
		t.Fatal(err)
	}
	wantVerdict(t, b.judge(t, report(b.Client, older, time.Second)), verdict.Unmanaged, verdict.ReasonOlder, agent.ActionNone)
}

// TestConnecting: what is being connected is no connection that has ended: it is left to
// the bound of connect().
func TestConnecting(t *testing.T) {
	b := newBed(t, patient)
	at := netip.AddrPortFrom(b.ServerAddr4, 7199)
	labtest.Fault(t)(b.DropC2S(at.Port()))
	c, id := labtest.Opening(t, b.Client, netip.AddrPortFrom(b.ClientAddr4, 40199), at)
	r := report(b.Client, nil, 2*time.Second)
	for name, of := range map[string]agent.Report{
		"by its addresses": {Local: id.Local, Peer: id.Remote}, "by its own": {Local: id.Local}, "by its cookie": {Cookie: id.Cookie},
	} {
		of.Caller, of.Sent = r.Caller, r.Sent
		t.Log(name)
		wantVerdict(t, b.judge(t, of), verdict.Unknown, verdict.ReasonConnecting, agent.ActionNone)
	}
	if got := labtest.State(t, c); got != conn.SynSent {
		t.Errorf("left in %s", got)
	}
}

// TestNothingIsDialled: a check of a peer that nobody has a socket to makes no
// connection, and finds nothing.
func TestNothingIsDialled(t *testing.T) {
	b := newBed(t, withApp)
	syns := labtest.Counter(t)(b.Count(lab.Match{Set: lab.SYN, Clear: lab.ACK}))
	r := report(b.Client, nil, 2*time.Second)
	r.Peer = netip.AddrPortFrom(b.ServerAddr4, 7100)
	if got, err := b.agent.Judge(context.Background(), r); err != nil || len(got) != 0 {
		t.Errorf("peer alone: %v, %v; want an empty list", got, err)
	}
	r.Local = netip.AddrPortFrom(b.ClientAddr4, 40000)
	wantVerdict(t, b.judge(t, r), verdict.Gone, verdict.ReasonNotFound, agent.ActionNone)
	if n := labtest.Packets(t, syns); n != 0 {
		t.Errorf("%d connections were tried", n)
	}
	labtest.Pair(t, b.Lab, 7100) // the counter must be able to count
	if n := labtest.Packets(t, syns); n != 1 {
		t.Errorf("the counter says %d after one connection", n)
	}
}

// Where keepalives cannot be provoked, an idle connection is condemned by those
// that come by themselves, though they come after the probe window; and one
// whose peer answers them lives.
func TestDeadPathIdleUnprovoked(t *testing.T) {
	b := (&bed{unprovoked: true}).start(t, patient)
	client, server := labtest.Pair(t, b.Lab, 0)
	bystander, bystanderPeer := labtest.Pair(t, b.Lab, 0)
	exchange(t, client, server)
	exchange(t, bystander, bystanderPeer)
	labtest.Fault(t)(b.StateLoss(labtest.Addr(client.LocalAddr()), labtest.Addr(client.RemoteAddr())))
	r := b.judge(t, report(b.Client, client, 0))
	wantVerdict(t, r, verdict.DeadPath, "", agent.ActionClosed)
	if r.Duration < 4*time.Second { // the idle time of its policy
		t.Errorf("condemned after %v, before a keepalive of its own", r.Duration)
	}
	wantAborted(t, client)
	wantVerdict(t, b.judge(t, report(b.Client, bystander, 0)), verdict.AliveSlow, "", agent.ActionNone)
	wantWorks(t, bystander, bystanderPeer)
}
