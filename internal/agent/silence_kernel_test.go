// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/agent"
	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/silence"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

// watchful is patient with a silence of a second, for both ends.
var watchful = strings.Replace(patient, "defaults:\n", "defaults:\n  silence: 1s\n", 1)

// silenceBed is a bed whose connections are watched.
type silenceBed struct {
	*bed
}

func newSilenceBed(t *testing.T) *silenceBed {
	t.Helper()
	b := &silenceBed{bed: newBed(t, watchful)}
	loadertest.Need(t, b.Programs, kernel.Silence)
	w := silence.New(silence.Config{Kernel: b.Programs, Log: labtest.Log(t), Judge: func(s loader.Suspect) {
		for _, ns := range []*netns.NS{b.Client, b.Server} {
			if ns.Inode() == s.Netns {
				b.agent.JudgeSilent(ns, s, nil)
			}
		}
	}})
	ctx, cancelRun := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancelRun()
		if err := <-done; err != nil {
			t.Errorf("watch: %v", err)
		}
	})
	return b
}

// verdicts returns those so far on one end of a connection.
func (b *silenceBed) verdicts(c *net.TCPConn) (out []agent.Entry) {
	for _, e := range agent.Entries(b.agent, 0) {
		if e.Kind == agent.EntryVerdict && e.ID.Local == labtest.Addr(c.LocalAddr()) && e.ID.Remote == labtest.Addr(c.RemoteAddr()) {
			out = append(out, e)
		}
	}
	return out
}

// pairs are connections to one port, each used once.
func (b *silenceBed) pairs(t *testing.T, n int) (clients, servers []*net.TCPConn) {
	t.Helper()
	ln := labtest.Listen(t, b.Server, netip.AddrPortFrom(b.ServerAddr4, 0))
	for range n {
		c := labtest.Dial(t, b.Client, netip.AddrPort{}, labtest.Addr(ln.Addr()))
		s := labtest.Accept(t, ln)
		exchange(t, c, s)
		clients, servers = append(clients, c), append(servers, s)
	}
	return clients, servers
}

// TestSilenceDeadPath: nobody reports. Requests are out, acknowledged before the
// peer was gone or in flight: their connections are closed, and those of their
// siblings that are gone, too.
func TestSilenceDeadPath(t *testing.T) {
	b := newSilenceBed(t)
	clients, servers := b.pairs(t, 3)
	acked, sibling, alive := clients[0], clients[1], clients[2]
	others, _ := b.pairs(t, 1) // to another service: no sibling of those
	flight := others[0]
	acked.Write([]byte("request"))
	io.ReadFull(servers[0], make([]byte, 7))
	for _, c := range []*net.TCPConn{acked, sibling, flight} {
		labtest.Fault(t)(b.StateLoss(labtest.Addr(c.LocalAddr()), labtest.Addr(c.RemoteAddr())))
	}
	flight.Write([]byte("request"))
	began := time.Now()
	for _, c := range []*net.TCPConn{acked, flight, sibling} {
		wantAborted(t, c)
		t.Logf("closed after %v", time.Since(began).Round(time.Millisecond))
	}
	for name, c := range map[string]*net.TCPConn{"acked": acked, "flight": flight, "sibling": sibling} {
		labtest.Eventually(t, late, func() bool { return len(b.verdicts(c)) > 0 }, "a verdict")
		e := b.verdicts(c)[0]
		want := "silence"
		if c == sibling {
			want = "sweep"
		}
		if e.Reporter != want || e.Result.Verdict != verdict.DeadPath || e.Result.Action != agent.ActionClosed || e.UID != 0 || e.PID != 0 {
			t.Errorf("%s: reporter %s, %+v, want %s", name, e.Reporter, e.Result, want)
		}
		if c != sibling && e.Result.Evidence.CallAge < time.Second {
			t.Errorf("%s: judged %v after the request", name, e.Result.Evidence.CallAge)
		}
		closed := 0
		for _, e := range b.verdicts(c) {
			if e.Result.Action == agent.ActionClosed {
				closed++
			}
		}
		if closed != 1 {
			t.Errorf("%s: closed by %d verdicts", name, closed)
		}
	}
	// A pass that is under way when one is closed may have it a second time.
	if n := b.agent.Stats().Suspects["server"]; n < 2 || n > 4 {
		t.Errorf("%d suspects, want 2, each at most twice", n)
	}
	wantWorks(t, alive, servers[2])
}

// TestSilenceLeavesAlone: a slow answer comes through, and its peer is asked a few
// times, ever more seldom; who does not wait is not asked at all.
func TestSilenceLeavesAlone(t *testing.T) {
	b := newSilenceBed(t)
	clients, servers := b.pairs(t, 5)
	slow, idle, pushed, upload, full := clients[0], clients[1], clients[2], clients[3], clients[4]
	onWire := count(t, b, idle)
	servers[2].Write([]byte("news"))
	io.ReadFull(pushed, make([]byte, 4))
	up := uploads(t, upload, servers[3])
	filled := fill(t, full)
	slow.Write([]byte("request"))
	io.ReadFull(servers[0], make([]byte, 7))
	before, err := onWire.Packets()
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	labtest.Eventually(t, time.Minute, func() bool { return len(b.verdicts(slow)) > 2 }, "three judgements")
	took := time.Since(began)
	for i, e := range b.verdicts(slow) {
		if e.Reporter != "silence" || e.Result.Verdict != verdict.AliveSlow || e.Result.Action != agent.ActionNone || e.Result.Evidence.CallAge < time.Second<<i {
			t.Errorf("judgement %d after %v: %s, %s", i, e.Result.Evidence.CallAge, e.Reporter, e.Result.Verdict)
		}
	}
	if after, err := onWire.Packets(); err != nil || loadertest.Has(t, b.Programs, kernel.Provoke) && after != before {
		t.Errorf("%d packets on the idle connection, %v", after-before, err) // before Linux 5.15 keepalives of its own
	}
	for name, c := range map[string]*net.TCPConn{
		"idle": idle, "pushed": pushed, "upload": upload, "idle, inbound": servers[1], "pushed, inbound": servers[2], "upload, inbound": servers[3],
	} {
		if n := b.verdicts(c); len(n) != 0 {
			t.Errorf("%s: judged in %v: %+v", name, took, n[0].Result)
		}
	}
	if n := b.verdicts(full); len(n) > 4 || slices.ContainsFunc(n, func(e agent.Entry) bool { return e.Result.Verdict != verdict.AliveSlow }) {
		t.Errorf("the peer that does not read was judged in %v: %+v", took, n)
	}
	up()
	servers[4].SetReadDeadline(time.Now().Add(late))
	if n, err := io.CopyN(io.Discard, servers[4], filled); err != nil {
		t.Errorf("%d of %d bytes came through: %v", n, filled, err)
	}
	wantWorks(t, servers[0], slow)
	wantWorks(t, idle, servers[1])
}

// count counts the packets of a connection on the router.
func count(t *testing.T, b *silenceBed, c *net.TCPConn) *lab.Counter {
	t.Helper()
	counter, err := b.Count(lab.Between(labtest.Addr(c.LocalAddr()), labtest.Addr(c.RemoteAddr())))
	if err != nil {
		t.Fatal(err)
	}
	return counter
}

// fill writes until the peer, which does not read, takes no more, and returns how
// much that was.
func fill(t *testing.T, c *net.TCPConn) int64 {
	t.Helper()
	n := int64(0)
	for {
		c.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
		m, err := c.Write(make([]byte, 64<<10))
		n += int64(m)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			c.SetWriteDeadline(time.Time{})
			return n
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// uploads sends from one end to the other until end is called, which checks that
// all came.
func uploads(t *testing.T, from, to *net.TCPConn) (end func()) {
	stop, sent, got := make(chan struct{}), make(chan int64, 1), make(chan int64, 1)
	go func() {
		n := int64(0)
		for tick := time.NewTicker(5 * time.Millisecond); ; <-tick.C {
			m, err := from.Write(make([]byte, 10_000))
			n += int64(m)
			select {
			case <-stop:
			default:
				if err == nil {
					continue
				}
			}
			from.CloseWrite()
			sent <- n
			return
		}
	}()
	go func() {
		to.SetReadDeadline(time.Now().Add(2 * time.Minute))
		n, _ := io.Copy(io.Discard, to)
		got <- n
	}()
	return func() {
		close(stop)
		if a, b := <-sent, <-got; a != b {
			t.Errorf("%d bytes sent, %d came", a, b)
		}
	}
}

// TestSilenceObserved: with action observe it is recorded, ever more seldom.
func TestSilenceObserved(t *testing.T) {
	b := newSilenceBed(t)
	b.SetPolicy(t, strings.Replace(watchful, "defaults:\n", "defaults:\n  action: observe\n", 1))
	clients, _ := b.pairs(t, 1)
	labtest.Fault(t)(b.StateLoss(labtest.Addr(clients[0].LocalAddr()), labtest.Addr(clients[0].RemoteAddr())))
	clients[0].Write([]byte("request"))
	labtest.Eventually(t, 4*late, func() bool { return len(b.verdicts(clients[0])) > 0 }, "a verdict")
	if e := b.verdicts(clients[0])[0]; e.Result.Verdict != verdict.DeadPath || e.Result.Action != agent.ActionObserved {
		t.Errorf("got %+v", e.Result)
	}
	if s := labtest.State(t, clients[0]); s != conn.Established {
		t.Errorf("state %s", s)
	}
}
