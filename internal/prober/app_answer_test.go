// SPDX-License-Identifier: Apache-2.0

package prober

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/policy"
)

// service is an application that treats each connection the same way.
type service struct {
	ns      *netns.NS
	addr    netip.AddrPort
	accepts atomic.Int32
	ended   chan error // how each connection ended, nil by a FIN
}

// Where the tests without privileges serve.
var (
	loopback4 = netip.MustParseAddrPort("127.0.0.1:0")
	loopback6 = netip.MustParseAddrPort("[::1]:0")
)

// start serves at an address of a namespace until the test ends.
func start(t *testing.T, ns *netns.NS, at netip.AddrPort, handle func(c *net.TCPConn)) *service {
	t.Helper()
	ln := labtest.Listen(t, ns, at)
	s := &service{ns: ns, addr: labtest.Addr(ln.Addr()), ended: make(chan error, 64)}
	var running sync.WaitGroup
	t.Cleanup(func() {
		_ = ln.Close()
		running.Wait()
	})
	running.Go(func() {
		for {
			c, err := ln.AcceptTCP()
			if err != nil {
				return
			}
			s.accepts.Add(1)
			running.Go(func() {
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(4 * patience))
				handle(c)
				_, err := io.Copy(io.Discard, c)
				select {
				case s.ended <- err:
				default: // nobody looks at so many
				}
			})
		}
	})
	return s
}

// ends fails the test unless a connection ended by FIN, seen from the service.
func (s *service) ends(t *testing.T) {
	t.Helper()
	select {
	case err := <-s.ended:
		if err != nil {
			t.Errorf("the service's connection ended with %v, want a FIN", err)
		}
	case <-time.After(patience):
		t.Error("the connection was left open")
	}
}

// newApps are Apps for a test.
func newApps(t *testing.T) *Apps {
	t.Helper()
	a := NewApps("0.1.0")
	t.Cleanup(a.Close)
	return a
}

// reply reads one HTTP request and writes something.
func reply(words string) func(*net.TCPConn) {
	return func(c *net.TCPConn) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
			return
		}
		_, _ = io.WriteString(c, words)
		_ = c.CloseWrite()
	}
}

// silent reads and never writes.
func silent(*net.TCPConn) {}

// resp is as much of Redis as PING needs.
func resp(c *net.TCPConn) {
	for lines := bufio.NewScanner(c); lines.Scan(); {
		switch lines.Text() {
		case "PING":
			_, _ = io.WriteString(c, "+PONG\r\n")
		default:
			_, _ = io.WriteString(c, "-ERR unknown command\r\n")
		}
	}
}

var (
	sendPing = &policy.AppProbe{Kind: policy.AppSend, Send: []byte("PING\r\n"), Timeout: time.Second}
	sendJunk = &policy.AppProbe{Kind: policy.AppSend, Send: []byte("HELO\r\n"), Timeout: time.Second}
)

func probeGRPC(service string) *policy.AppProbe {
	return &policy.AppProbe{Kind: policy.AppGRPC, Service: service, Timeout: time.Second}
}

func TestOutcomes(t *testing.T) {
	http1 := probeHTTP(time.Second)
	for _, tt := range []struct {
		what   string
		probe  *policy.AppProbe
		handle func(*net.TCPConn)
		want   AppOutcome
	}{
		{"200", http1, reply("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwell\n"), AppAnswered},
		{"500", http1, reply("HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n"), AppAnswered},
		{"garbage", http1, reply("\x00\xff garbage"), AppAnswered},
		{"one byte", http1, reply("H"), AppAnswered},
		{"a long page", http1, reply("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + strings.Repeat("x", maxReply/2)), AppAnswered},
		{"a greeting", http1, func(c *net.TCPConn) { _, _ = io.WriteString(c, "220 mail\r\n"); _ = c.CloseWrite() }, AppAnswered},
		{"not HTTP/2", probeGRPC(""), reply("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"), AppAnswered},
		{"PING", sendPing, resp, AppAnswered},
		{"an error for PING", sendJunk, resp, AppAnswered},
		{"silent to http", http1, silent, AppSilent},
		{"silent to grpc", probeGRPC("x"), silent, AppSilent},
		{"silent to send", sendPing, silent, AppSilent},
		{"closes", http1, func(c *net.TCPConn) { _ = c.CloseWrite() }, AppNoConnection},
		{"closes to send", sendPing, func(c *net.TCPConn) { _ = c.CloseWrite() }, AppNoConnection},
		{"closes to grpc", probeGRPC(""), func(c *net.TCPConn) { _ = c.CloseWrite() }, AppNoConnection},
		{"unknown kind", &policy.AppProbe{Kind: "smtp", Timeout: time.Second}, silent, AppNoConnection},
	} {
		t.Run(tt.what, func(t *testing.T) {
			t.Parallel()
			s := start(t, here(t), loopback4, tt.handle)
			if tt.want == AppAnswered {
				tt.probe = patient(tt.probe)
			}
			asked := int32(0)
			got := insist(tt.want, func() AppOutcome {
				asked++
				defer s.ends(t)
				return newApps(t).Ask(t.Context(), s.ns, s.addr, tt.probe)
			})
			if got != tt.want {
				t.Errorf("outcome %s, want %s", got, tt.want)
			}
			if n := s.accepts.Load(); n != asked {
				t.Errorf("asked %d times, %d connections", asked, n)
			}
		})
	}
}

func TestAnswersOverIPv6(t *testing.T) {
	s := start(t, here(t), loopback6, resp)
	if got := newApps(t).Ask(t.Context(), s.ns, s.addr, patient(sendPing)); got != AppAnswered {
		t.Errorf("outcome %s, want answered", got)
	}
	s.ends(t)
}

func TestAnswerCanBeLate(t *testing.T) {
	s := start(t, here(t), loopback4, func(c *net.TCPConn) {
		time.Sleep(1500 * time.Millisecond) // the application's own time
		_, _ = io.WriteString(c, "+PONG\r\n")
	})
	if got := newApps(t).Ask(t.Context(), s.ns, s.addr, patient(sendPing)); got != AppAnswered {
		t.Errorf("outcome %s, want answered", got)
	}
	s.ends(t)
}

func TestResetIsNoAnswer(t *testing.T) {
	for what, probe := range map[string]*policy.AppProbe{"http": probeHTTP(time.Second), "grpc": probeGRPC(""), "send": sendPing} {
		t.Run(what, func(t *testing.T) {
			s := start(t, here(t), loopback4, func(c *net.TCPConn) {
				_, _ = c.Read(make([]byte, 1))
				_ = c.SetLinger(0)
				_ = c.Close()
			})
			if got := newApps(t).Ask(t.Context(), s.ns, s.addr, probe); got != AppNoConnection {
				t.Errorf("outcome %s, want no_connection", got)
			}
		})
	}
}

func TestRefused(t *testing.T) {
	ln := labtest.Listen(t, here(t), loopback4)
	nobody := labtest.Addr(ln.Addr())
	_ = ln.Close()
	begun := time.Now()
	got := newApps(t).Ask(t.Context(), here(t), nobody, probeHTTP(10*time.Second))
	if took := time.Since(begun); got != AppNoConnection || took > maxConnect {
		t.Errorf("outcome %s after %s, want no_connection at once", got, took)
	}
}

// What the application gets to see.
func TestRequestOverHTTP(t *testing.T) {
	got := make(chan string, 1)
	s := start(t, here(t), loopback4, func(c *net.TCPConn) {
		b := make([]byte, 1024)
		n, _ := c.Read(b)
		got <- string(b[:n])
		_, _ = io.WriteString(c, "HTTP/1.1 204 No Content\r\n\r\n")
		_ = c.CloseWrite()
	})
	probe := &policy.AppProbe{Kind: policy.AppHTTP, Path: "/healthz?full=1%20a"}
	if got := newApps(t).Ask(t.Context(), s.ns, s.addr, patient(probe)); got != AppAnswered {
		t.Fatalf("outcome %s, want answered", got)
	}
	want := fmt.Sprintf("GET /healthz?full=1%%20a HTTP/1.1\r\nHost: %s\r\nUser-Agent: sockhealth/0.1.0\r\n"+
		"Accept: */*\r\nConnection: close\r\n\r\n", s.addr)
	if diff := cmp.Diff(want, <-got); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
}

func TestThousandAskersOneConnection(t *testing.T) {
	labtest.NoLeak(t)
	proceed := make(chan struct{})
	s := start(t, here(t), loopback4, func(c *net.TCPConn) {
		<-proceed
		resp(c)
	})
	a := newApps(t)
	probe := patient(sendPing)
	var all sync.WaitGroup
	var answered, leaving atomic.Int32
	for i := range 1000 {
		ctx, cancel := context.WithCancel(t.Context())
		if i%10 == 0 {
			leaving.Add(1)
			cancel() // some have left before they asked
		}
		all.Go(func() {
			defer cancel()
			if a.Ask(ctx, s.ns, s.addr, probe) == AppAnswered {
				answered.Add(1)
			}
		})
	}
	close(proceed)
	all.Wait()
	if got, want := answered.Load(), 1000-leaving.Load(); got != want {
		t.Errorf("%d askers told that it answered, want %d", got, want)
	}
	s.ends(t)
	if n := s.accepts.Load(); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
}

// Close comes back although an application keeps its connection.
func TestCloseDuringQuestions(t *testing.T) {
	labtest.NoLeak(t)
	s := start(t, here(t), loopback4, silent)
	for _, probe := range []*policy.AppProbe{probeHTTP(time.Minute), {Kind: policy.AppGRPC, Timeout: time.Minute}} {
		a := NewApps("")
		asked := make(chan AppOutcome)
		before := s.accepts.Load()
		go func() { asked <- a.Ask(context.Background(), s.ns, s.addr, probe) }()
		labtest.Eventually(t, patience, func() bool { return s.accepts.Load() > before }, "the question")
		a.Close()
		if got := <-asked; got != AppNoConnection {
			t.Errorf("outcome %s, want no_connection", got)
		}
		s.ends(t)
	}
}

// What this machine slept through is no silence of the application's, and an answer
// is one all the same.
func TestSleepIsNoSilence(t *testing.T) {
	for _, tt := range []struct {
		what   string
		handle func(*net.TCPConn)
		asleep time.Duration // at each look
		want   AppOutcome
	}{
		{"awake", silent, 0, AppSilent},
		{"a nap", silent, longSleep, AppSilent},
		{"asleep", silent, longSleep + time.Millisecond, AppNoConnection},
		{"asleep, and answered", reply("well"), time.Hour, AppAnswered},
	} {
		t.Run(tt.what, func(t *testing.T) {
			t.Parallel()
			s := start(t, here(t), loopback4, tt.handle)
			probe := probeHTTP(500 * time.Millisecond)
			if tt.want == AppAnswered {
				probe = patient(probe)
			}
			got := insist(tt.want, func() AppOutcome {
				a := newApps(t)
				slept := time.Minute
				a.slept = func() time.Duration { defer func() { slept += tt.asleep }(); return slept }
				return a.Ask(t.Context(), s.ns, s.addr, probe)
			})
			if got != tt.want {
				t.Errorf("outcome %s, want %s", got, tt.want)
			}
		})
	}
}

// An answer that this process was too busy to read is no silence. A FIN counts
// as a byte received, though none came.
func TestUnreadAnswerIsNoSilence(t *testing.T) {
	for _, tt := range []struct {
		what   string
		handle func(*net.TCPConn)
		count  uint64 // the kernel's, of bytes received
		want   AppOutcome
	}{
		{"bytes", func(c *net.TCPConn) { _, _ = io.WriteString(c, "hello") }, 5, AppAnswered},
		{"bytes and a FIN", func(c *net.TCPConn) { _, _ = io.WriteString(c, "h"); _ = c.CloseWrite() }, 2, AppAnswered},
		{"a FIN", func(c *net.TCPConn) { _ = c.CloseWrite() }, 1, AppNoConnection},
		{"nothing", silent, 0, AppSilent},
	} {
		t.Run(tt.what, func(t *testing.T) {
			s := start(t, here(t), loopback4, tt.handle)
			c := newCall(labtest.Dial(t, s.ns, netip.AddrPort{}, s.addr))
			defer c.Close()
			_, _ = c.Write([]byte("?"))
			labtest.Eventually(t, patience, func() bool {
				info := labtest.TCPInfo(t, c.tcp)
				return info.Bytes_received == tt.count && delivered(info)
			}, "what the service sends")
			if got := c.watch(t.Context(), time.Nanosecond, make(chan struct{})); got != tt.want {
				t.Errorf("outcome %s, want %s", got, tt.want)
			}
		})
	}
}

func TestInReach(t *testing.T) {
	for _, tt := range []struct {
		lastHeard, rtt uint32 // ms
		idle, timeout  time.Duration
		want           bool
	}{
		{1100, 0, pulse, 3 * time.Second, true},
		{1700, 0, pulse, 3 * time.Second, true},
		{1701, 0, pulse, 3 * time.Second, false},
		{2100, 600, pulse, 3 * time.Second, true},
		{2500, 0, pulse, 10 * time.Second, true}, // one keepalive lost
		{2501, 0, pulse, 10 * time.Second, false},
		{5700, 0, 5 * time.Second, 10 * time.Second, true}, // a policy's keepalive
		{5701, 0, 5 * time.Second, 10 * time.Second, false},
	} {
		info := &unix.TCPInfo{Last_ack_recv: tt.lastHeard, Rtt: tt.rtt * 1000}
		if got := inReach(info, tt.idle, tt.timeout); got != tt.want {
			t.Errorf("heard %d ms ago, round trip %d ms, keepalive %s, timeout %s: %t, want %t",
				tt.lastHeard, tt.rtt, tt.idle, tt.timeout, got, tt.want)
		}
	}
}

func TestOutcomeNames(t *testing.T) {
	for o, want := range map[AppOutcome]string{AppNoConnection: "no_connection", AppAnswered: "answered", AppSilent: "silent", 99: "no_connection"} {
		if got := o.String(); got != want {
			t.Errorf("outcome %d is %q, want %q", o, got, want)
		}
	}
}
