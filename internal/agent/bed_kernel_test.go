// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/agent"
	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/prober"
	"github.com/sockhealth/sockhealth/internal/sockets"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

// late is how late things may happen on a busy machine.
const late = 10 * time.Second

// patient is a policy whose bounds never strike first in these tests, with a
// probe window of 1.5 s.
const patient = `version: 1
defaults:
  user_timeout: 60s
  keepalive: {idle: 30s, interval: 5s, count: 5}
  probe: {window: 1500ms, attempts: 3}
peers:
  - name: server
    cidrs: [10.91.2.0/24, "fd91:0:0:2::/64"]
  - name: client
    cidrs: [10.91.1.0/24]
    direction: inbound
`

// bed is a real agent over real sockets.
type bed struct {
	*loadertest.Bed
	agent      *agent.Agent
	unprovoked bool // as before Linux 5.15
	lab        lab.Options
}

func newBed(t *testing.T, policyText string) *bed {
	return (&bed{lab: lab.Options{Servers: 2}}).start(t, policyText)
}

func (b *bed) start(t *testing.T, policyText string) *bed {
	t.Helper()
	b.Bed = loadertest.NewOn(t, b.lab, policyText)
	b.setPolicy(t, policyText)
	apps := prober.NewApps("test")
	t.Cleanup(apps.Close)
	b.agent = agent.New(agent.Config{
		Kernel: b.Programs, Sockets: b.sockets(), Prober: prober.New(), Apps: apps, Now: conn.Now,
		Log: labtest.Log(t),
	})
	stream, err := b.Programs.Events()
	if err != nil {
		t.Fatal(err)
	}
	followed := make(chan error, 1)
	go func() { followed <- b.agent.Follow(stream) }()
	t.Cleanup(func() {
		b.agent.Close()
		agent.DecidedAgain(t, b.agent)
		stream.Close()
		if err := <-followed; err != nil {
			t.Errorf("follow events: %v", err)
		}
	})
	return b
}

// setPolicy puts a policy in force. Where no keepalives can be provoked, idle
// connections are judged by those that come by themselves: sooner than it says.
func (b *bed) setPolicy(t *testing.T, text string) {
	t.Helper()
	if b.unprovoked || !loadertest.Has(t, b.Programs, kernel.Provoke) {
		text = strings.ReplaceAll(text, "idle: 30s", "idle: 4s")
	}
	b.SetPolicy(t, text)
}

// sockets are the bed's, without provoked keepalives where the bed says so.
func (b *bed) sockets() agent.Sockets {
	s := sockets.New(b.Programs)
	if b.unprovoked {
		return unprovoked{s}
	}
	return s
}

// unprovoked are sockets as a kernel before 5.15 has them.
type unprovoked struct{ *sockets.Sockets }

func (unprovoked) Provoke(*netns.NS, []uint64) ([]uint64, error) { return nil, loader.ErrUnsupported }
func (unprovoked) Calm(*netns.NS, []uint64) ([]uint64, error)    { return nil, loader.ErrUnsupported }

// report is what an application says whose call on c has this age.
func report(ns *netns.NS, c *net.TCPConn, age time.Duration) agent.Report {
	r := agent.Report{
		Caller: agent.Caller{NS: ns, UID: uint32(os.Getuid()), PID: int32(os.Getpid())}, Sent: conn.Now() - age,
	}
	if c != nil {
		r.Local, r.Peer = labtest.Addr(c.LocalAddr()), labtest.Addr(c.RemoteAddr())
	}
	return r
}

// judge reports and returns the only result.
func (b *bed) judge(t *testing.T, r agent.Report) agent.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	results, err := b.agent.Judge(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	if len(results) != 1 {
		t.Fatalf("%d results, want 1", len(results))
	}
	return results[0]
}

func wantVerdict(t *testing.T, r agent.Result, word verdict.Word, reason string, action agent.Action) {
	t.Helper()
	if r.Verdict != word || r.Reason != reason || r.Action != action {
		t.Errorf("verdict %s (%s), action %s; want %s (%s), %s; evidence %+v",
			r.Verdict, r.Reason, r.Action, word, reason, action, r.Evidence)
	}
}

// wantDelivery checks what is said of the request.
func wantDelivery(t *testing.T, r agent.Result, want verdict.Delivery, unacked, unsent uint32) {
	t.Helper()
	if e := r.Evidence; r.Delivery != want || e.Unacked != unacked || e.Unsent != unsent {
		t.Errorf("delivery %q, %d bytes unacknowledged, %d of them unsent; want %q, %d, %d",
			r.Delivery, e.Unacked, e.Unsent, want, unacked, unsent)
	}
}

// wantAborted: the application gets ECONNABORTED.
func wantAborted(t *testing.T, c *net.TCPConn) {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(late))
	if _, err := io.ReadAll(c); !errors.Is(err, unix.ECONNABORTED) {
		t.Errorf("read ended with %v, want ECONNABORTED", err)
	}
}

// wantWorks sends a message each way.
func wantWorks(t *testing.T, a, b *net.TCPConn) {
	t.Helper()
	for _, dir := range [][2]*net.TCPConn{{a, b}, {b, a}} {
		if _, err := dir[0].Write([]byte("still here")); err != nil {
			t.Errorf("write: %v", err)
			return
		}
		dir[1].SetReadDeadline(time.Now().Add(late))
		buf := make([]byte, 10)
		if _, err := io.ReadFull(dir[1], buf); err != nil || string(buf) != "still here" {
			t.Errorf("read %q, %v", buf, err)
		}
	}
}

// exchange makes the connection one that has been used.
func exchange(t *testing.T, a, b *net.TCPConn) {
	t.Helper()
	wantWorks(t, a, b)
}

// silent waits until nothing came over the connection for a time.
func (b *bed) silent(t *testing.T, ns *netns.NS, c *net.TCPConn, d time.Duration) {
	t.Helper()
	s := sockets.New(b.Programs)
	labtest.Eventually(t, d+late, func() bool {
		snap, err := s.Get(ns, labtest.Addr(c.LocalAddr()), labtest.Addr(c.RemoteAddr()))
		return err == nil && snap.PacketAge >= d
	}, "silence on the connection")
}
