// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/report"
)

const policiesPolicy = `version: 1
defaults:
  direction: outbound
  probe: {window: 1500ms, attempts: 3}
peers:
  - {name: observed, cidrs: [10.91.2.0/24], ports: [7101], action: observe}
  - {name: enforced, cidrs: [10.91.2.0/24], ports: [7102], app_override: enforce}
  - {name: allowed, cidrs: [10.91.2.0/24], ports: [7103], app_override: allow}
  - {name: asked, cidrs: [10.91.2.0/24], ports: [7104], app_probe: {http: {}, timeout: 1s}}
  - {name: unasked, cidrs: [10.91.2.0/24], ports: [7105]}
`

// The entries of a policy that say what is done, each through the whole agent.
func TestPolicies(t *testing.T) {
	a := newRunAgent(t)
	labtest.Enter(t, a.cgroup)
	a.write(t, policiesPolicy)
	a.start(t)
	t.Run("observe", a.testObserve)
	t.Run("override", a.testOverride)
	t.Run("application probe", a.testAppProbe)
	if s := a.status(t); s.Health != "ok" || s.Judgements != 0 {
		t.Errorf("status: %+v", s)
	}
	if code := a.terminate(t); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

// testObserve: what would have been closed is not, and that it lives is counted.
func (a *runAgent) testObserve(t *testing.T) {
	client, server := labtest.Pair(t, a.Lab, 7101)
	fault := labtest.Fault(t)(a.DropPort(7101))
	if r := a.report(t, client, "0s"); r.Verdict != "dead_path" || r.Action != "observed" || r.Policy != "observed" {
		t.Errorf("got %+v", r)
	}
	if s := labtest.State(t, client); s != conn.Established {
		t.Fatalf("the connection is in %s", s)
	}
	metrics := a.get(t, "/metrics")
	wantMetric(t, metrics, `sockhealth_would_have_closed_live_total{policy="observed"} 0`)
	wantMetric(t, metrics, `sockhealth_closes_total{action="observed",policy="observed"} 1`)
	wantMetric(t, metrics, `sockhealth_stale_sockets_total{cause="dead_path",policy="observed"} 0`)
	labtest.Heal(t, fault)
	if _, err := server.Write([]byte("late")); err != nil {
		t.Fatal(err)
	}
	labtest.Eventually(t, 15*time.Second, func() bool {
		return strings.Contains(a.get(t, "/metrics"), "\nsockhealth_would_have_closed_live_total{policy=\"observed\"} 1\n")
	}, "the live connection counted")
	_ = client.SetReadDeadline(time.Now().Add(10 * time.Second))
	if n, err := client.Read(make([]byte, 16)); n != 4 || err != nil {
		t.Errorf("read %d bytes, %v", n, err)
	}
	stdout, _, _ := a.output(t, a.ns, "sockets", "explain", "--run-dir", "run", client.LocalAddr().String())
	if !strings.Contains(stdout, "observed only: nothing is closed") {
		t.Errorf("explain does not say that it is observed:\n%s", stdout)
	}
}

// testOverride: what an application asks for, and what it reads back.
func (a *runAgent) testOverride(t *testing.T) {
	policed := conn.Options{KeepAlive: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 5, UserTimeout: 15 * time.Second}
	for _, tc := range []struct {
		name    string
		port    uint16
		idle    int // seconds; the application's
		timeout int // milliseconds
		want    conn.Options
	}{
		{"enforce looser", 7102, 60, 90_000, policed},
		{"enforce tighter", 7102, 2, 11_000, policed},
		{"allow looser", 7103, 60, 90_000, conn.Options{
			KeepAlive: true, Idle: time.Minute, Interval: 2 * time.Second, Count: 5, UserTimeout: 90 * time.Second,
		}},
		{"allow none", 7103, 5, 0, conn.Options{KeepAlive: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 5}},
	} {
		client, _ := labtest.Pair(t, a.Lab, tc.port)
		labtest.Setsockopt(t, client, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, tc.idle)
		labtest.Setsockopt(t, client, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, tc.timeout)
		if got := labtest.Options(t, client); got != tc.want {
			t.Errorf("%s: reads back %+v, want %+v", tc.name, got, tc.want)
		}
	}
}

// testAppProbe: a stopped server acknowledges and does not answer. Only the
// policy with an application probe closes its connection.
func (a *runAgent) testAppProbe(t *testing.T) {
	server, addrs := a.answerer(t, 7104, 7105)
	var clients []*net.TCPConn
	for _, addr := range addrs {
		c := labtest.Dial(t, a.Client, netip.AddrPort{}, addr)
		request(t, c)
		answered(t, c)
		clients = append(clients, c)
	}
	freeze(t, server)
	for _, c := range clients {
		request(t, c)
	}
	var r report.Result
	labtest.Eventually(t, time.Minute, func() bool {
		r = a.report(t, clients[0], "0s")
		return r.Evidence.AppProbe != "no_connection" // the kernel's keepalives were late: again, 10 s later
	}, "the outcome of the application probe")
	if r.Verdict != "alive_hung" || r.Action != "closed" || r.Policy != "asked" || r.Evidence.AppProbe != "silent" || !r.Evidence.ProbeAnswered {
		t.Errorf("asked: %+v", r)
	}
	_ = clients[0].SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := clients[0].Read(make([]byte, 1)); !errors.Is(err, unix.ECONNABORTED) {
		t.Errorf("asked: the client reads %v, want ECONNABORTED", err)
	}
	if r := a.report(t, clients[1], "0s"); r.Verdict != "alive_slow" || r.Action != "none" || r.Policy != "unasked" || r.Evidence.AppProbe != "" {
		t.Errorf("unasked: %+v", r)
	}
	wantMetric(t, a.get(t, "/metrics"), `sockhealth_stale_sockets_total{cause="hung",policy="asked"} 1`)
	if s := a.status(t); s.Peers[3].Name != "asked" || s.Peers[3].Stale["hung"] != 1 {
		t.Errorf("status: %+v", s.Peers)
	}
	if err := server.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	answered(t, clients[1])
}

// freeze stops a child and returns when all of its threads have stopped.
func freeze(t *testing.T, child *os.Process) {
	t.Helper()
	err := child.Signal(syscall.SIGSTOP)
	if err == nil {
		err = unix.Waitid(unix.P_PID, child.Pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// answerer starts a process that answers HTTP at these ports of the server.
func (a *runAgent) answerer(t *testing.T, ports ...uint16) (*os.Process, []netip.AddrPort) {
	t.Helper()
	var addrs []netip.AddrPort
	cmd := a.command(t)
	cmd.Args = []string{"answerer"} // see TestMain
	for _, port := range ports {
		addr := netip.AddrPortFrom(a.ServerAddr4, port)
		addrs = append(addrs, addr)
		cmd.Args = append(cmd.Args, addr.String())
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	labtest.Start(t, a.Server, cmd)
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("the answerer said %q, %v", line, err)
	}
	return cmd.Process, addrs
}

// answerer answers HTTP at the addresses that its arguments name, and says when
// it listens.
func answerer() {
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	for _, addr := range os.Args[1:] {
		l, err := net.Listen("tcp4", addr)
		if err != nil {
			log.Fatal(err)
		}
		go func() { log.Fatal(http.Serve(l, handler)) }()
	}
	fmt.Println("listening")
	select {}
}

// request sends a request.
func request(t *testing.T, c *net.TCPConn) {
	t.Helper()
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
}

// answered reads an answer.
func answered(t *testing.T, c *net.TCPConn) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 4096)
	if n, err := c.Read(b); err != nil || !strings.HasPrefix(string(b[:n]), "HTTP/1.1 200 OK") {
		t.Fatalf("read %q, %v", b[:n], err)
	}
}
