// SPDX-License-Identifier: Apache-2.0

package prober

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/policy"
)

// asking runs a question in the background.
func asking(t *testing.T, ns *netns.NS, peer netip.AddrPort, p *policy.AppProbe) <-chan AppOutcome {
	t.Helper()
	a := newApps(t)
	outcome := make(chan AppOutcome, 1)
	go func() { outcome <- a.Ask(t.Context(), ns, peer, p) }()
	return outcome
}

// patient is a probe for an answer that is to come on a busy machine, too.
func patient(p *policy.AppProbe) *policy.AppProbe {
	long := *p
	long.Timeout = 4 * patience
	return &long
}

// insist asks, and where silence is wanted up to three times: on a busy machine a
// keepalive or its answer may be so late that silence proves nothing.
func insist(want AppOutcome, ask func() AppOutcome) (got AppOutcome) {
	for range 3 {
		if got = ask(); want != AppSilent || got != AppNoConnection {
			break
		}
	}
	return got
}

// The server can be reached from the client's namespace alone.
func TestAsksFromTheNamespace(t *testing.T) {
	labtest.NoLeak(t)
	l := labtest.New(t, lab.Options{})
	for _, addr := range []netip.Addr{l.ServerAddr4, l.ServerAddr6} {
		s := start(t, l.Server, netip.AddrPortFrom(addr, 0), resp)
		resets := labtest.Counter(t)(l.Count(lab.Match{Set: lab.RST}))
		a := newApps(t)
		if got := a.Ask(t.Context(), l.Client, s.addr, patient(sendPing)); got != AppAnswered {
			t.Errorf("%s: outcome %s, want answered", addr, got)
		}
		s.ends(t)
		elsewhere := labtest.Netns(t)
		if got := a.Ask(t.Context(), elsewhere, s.addr, sendPing); got != AppNoConnection {
			t.Errorf("%s from a namespace without a route: outcome %s, want no_connection", addr, got)
		}
		if n := labtest.Packets(t, resets); n != 0 {
			t.Errorf("%s: %d resets on the wire", addr, n)
		}
	}
}

// However much an application answers, its connection ends without a reset.
func TestNoResets(t *testing.T) {
	l := labtest.New(t, lab.Options{})
	resets := labtest.Counter(t)(l.Count(lab.Match{Set: lab.RST}))
	page := "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + strings.Repeat("x", maxReply/2)
	for what, tt := range map[string]struct {
		probe  *policy.AppProbe
		handle func(*net.TCPConn)
		want   AppOutcome
	}{
		"http":       {patient(probeHTTP(0)), reply(page), AppAnswered},
		"grpc":       {patient(probeGRPC("")), reply(page), AppAnswered},
		"send":       {patient(sendPing), func(c *net.TCPConn) { _, _ = io.WriteString(c, page) }, AppAnswered},
		"http, hung": {probeHTTP(300 * time.Millisecond), silent, AppSilent},
	} {
		s := start(t, l.Server, netip.AddrPortFrom(l.ServerAddr4, 0), tt.handle)
		got := insist(tt.want, func() AppOutcome {
			defer s.ends(t)
			return newApps(t).Ask(t.Context(), l.Client, s.addr, tt.probe)
		})
		if got != tt.want {
			t.Errorf("%s: outcome %s, want %s", what, got, tt.want)
		}
	}
	if n := labtest.Packets(t, resets); n != 0 {
		t.Errorf("%d resets on the wire", n)
	}
}

func TestDropped(t *testing.T) {
	l := labtest.New(t, lab.Options{})
	s := start(t, l.Server, netip.AddrPortFrom(l.ServerAddr4, 0), resp)
	fault := labtest.Fault(t)(l.DropPort(s.addr.Port()))
	begun := time.Now()
	got := newApps(t).Ask(t.Context(), l.Client, s.addr, sendPing)
	if took := time.Since(begun); got != AppNoConnection || took < sendPing.Timeout {
		t.Errorf("outcome %s after %s, want no_connection after the timeout", got, took)
	}
	if labtest.Packets(t, fault) == 0 {
		t.Error("no packet was dropped, nothing was tried")
	}
}

// The application has the question and answers it, but the path is lost: that
// is not its silence.
func TestAnswerLostOnTheWay(t *testing.T) {
	l := labtest.New(t, lab.Options{})
	asked, lost := make(chan struct{}), make(chan struct{})
	s := start(t, l.Server, netip.AddrPortFrom(l.ServerAddr4, 0), func(c *net.TCPConn) {
		_, _ = c.Read(make([]byte, 16))
		close(asked)
		<-lost
		_, _ = io.WriteString(c, "+PONG\r\n")
	})
	probe := *sendPing
	probe.Timeout = 3 * time.Second
	outcome := asking(t, l.Client, s.addr, &probe)
	<-asked
	fault := labtest.Fault(t)(l.DropS2C(s.addr.Port()))
	close(lost)
	if got := <-outcome; got != AppNoConnection {
		t.Errorf("outcome %s, want no_connection", got)
	}
	if labtest.Packets(t, fault) == 0 {
		t.Error("no packet was dropped, nothing was tried")
	}
}

// The question itself is lost behind the handshake.
func TestQuestionLostOnTheWay(t *testing.T) {
	l := labtest.New(t, lab.Options{})
	s := start(t, l.Server, netip.AddrPortFrom(l.ServerAddr4, 0), resp)
	fault := labtest.Fault(t)(l.Drop(lab.Match{DstPort: s.addr.Port(), Clear: lab.SYN}))
	if got := newApps(t).Ask(t.Context(), l.Client, s.addr, sendPing); got != AppNoConnection {
		t.Errorf("outcome %s, want no_connection", got)
	}
	if labtest.Packets(t, fault) < 2 {
		t.Error("the question was not dropped, nothing was tried")
	}
}

// queue is a listener whose application never accepts, with room for one.
type queue struct {
	lab  *lab.Lab
	addr netip.AddrPort
}

func newQueue(t *testing.T) *queue {
	t.Helper()
	q := &queue{lab: labtest.New(t, lab.Options{})}
	ln := labtest.Listen(t, q.lab.Server, netip.AddrPortFrom(q.lab.ServerAddr4, 0))
	q.addr = labtest.Addr(ln.Addr())
	labtest.Control(t, ln, func(fd int) error { return unix.Listen(fd, backlog) })
	return q
}

// backlog leaves room for one more in the queue, and for a handshake beside one
// that is under way: with less, kernels answer with SYN cookies, and a segment that
// overtakes the first is answered with a reset.
const backlog = 2

// fill takes the places, past the router.
func (q *queue) fill(t *testing.T) {
	t.Helper()
	for range backlog + 1 {
		labtest.Dial(t, q.lab.Server, netip.AddrPort{}, q.addr)
	}
}

// overflows returns how often the server's kernel found the queue full.
func (q *queue) overflows(t *testing.T) uint64 {
	t.Helper()
	return netstat(t, q.lab.Server, "ListenOverflows")
}

// With room in the queue the kernel takes the question, whoever reads it or not.
func TestAcceptQueueWithRoom(t *testing.T) {
	got := insist(AppSilent, func() AppOutcome {
		q := newQueue(t)
		got := newApps(t).Ask(t.Context(), q.lab.Client, q.addr, sendPing)
		if n := q.overflows(t); n != 0 {
			t.Errorf("the queue was full %d times, the test tried something else", n)
		}
		return got
	})
	if got != AppSilent {
		t.Errorf("outcome %s, want silent", got)
	}
}

// A full queue throws the SYN away.
func TestAcceptQueueFull(t *testing.T) {
	q := newQueue(t)
	q.fill(t)
	if got := newApps(t).Ask(t.Context(), q.lab.Client, q.addr, sendPing); got != AppNoConnection {
		t.Errorf("outcome %s, want no_connection", got)
	}
	if q.overflows(t) == 0 {
		t.Error("the queue was never full, nothing was tried")
	}
}

// A queue that fills up during the handshake throws away what follows the SYN:
// the client is connected, to all appearances, and its question is never taken.
func TestAcceptQueueFillsUpDuringTheHandshake(t *testing.T) {
	for _, probe := range []policy.AppProbe{*sendPing, *probeHTTP(0), *probeGRPC("")} {
		t.Run(string(probe.Kind), func(t *testing.T) {
			// Time for three retransmissions on a slow machine, and for no keepalive
			// to be missed.
			probe.Timeout = 4 * time.Second
			q := newQueue(t)
			heard := labtest.Counter(t)(q.lab.Count(lab.Match{SrcPort: q.addr.Port(), Set: lab.SYN | lab.ACK}))
			late := labtest.Fault(t)(q.lab.Drop(lab.Match{DstPort: q.addr.Port(), Clear: lab.SYN}))
			outcome := asking(t, q.lab.Client, q.addr, &probe)
			labtest.Eventually(t, patience, func() bool { return labtest.Packets(t, late) >= 2 }, "the question")
			q.fill(t)
			labtest.Heal(t, late)
			if got := <-outcome; got != AppNoConnection {
				t.Errorf("outcome %s, want no_connection", got)
			}
			if labtest.Packets(t, heard) == 0 || q.overflows(t) == 0 {
				t.Error("connected, or full, it was not: nothing was tried")
			}
		})
	}
}

// A real process that is stopped, and goes on.
func TestStoppedProcess(t *testing.T) {
	ln := labtest.Listen(t, here(t), loopback4)
	addr := labtest.Addr(ln.Addr())
	file, err := ln.File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	app := exec.Command("/proc/self/exe")
	app.Env = append(os.Environ(), servesFD+"=1")
	app.ExtraFiles = []*os.File{file}
	if err := app.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = app.Process.Kill()
		_ = app.Wait()
	})
	_ = ln.Close()
	ask := func(when string, want AppOutcome) {
		t.Helper()
		for _, probe := range []*policy.AppProbe{probeHTTP(2 * time.Second), sendJunkHTTP} {
			if want == AppAnswered {
				probe = patient(probe)
			}
			got := insist(want, func() AppOutcome { return newApps(t).Ask(t.Context(), here(t), addr, probe) })
			if got != want {
				t.Errorf("%s: %s outcome %s, want %s", when, probe.Kind, got, want)
			}
		}
	}
	ask("running", AppAnswered)
	stop(t, app.Process, unix.SIGSTOP, 'T')
	ask("stopped", AppSilent)
	stop(t, app.Process, unix.SIGCONT, 'S')
	ask("running again", AppAnswered)
}

// sendJunkHTTP is answered with 400 by a web server.
var sendJunkHTTP = &policy.AppProbe{Kind: policy.AppSend, Send: []byte("junk\r\n\r\n"), Timeout: 2 * time.Second}

// stop sends a signal and waits until the process is in a state.
func stop(t *testing.T, p *os.Process, signal unix.Signal, state byte) {
	t.Helper()
	if err := p.Signal(signal); err != nil {
		t.Fatal(err)
	}
	labtest.Eventually(t, patience, func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Pid))
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := bytes.Cut(b, []byte(") "))
		return len(rest) > 0 && rest[0] == state
	}, fmt.Sprintf("state %c of the process", state))
}
