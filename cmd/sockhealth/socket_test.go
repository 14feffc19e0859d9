// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/api"
	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/report"
)

// Explain, probe and events, and reports that do not wait, on one agent.
func TestAsk(t *testing.T) {
	a := newRunAgent(t)
	labtest.Enter(t, a.cgroup)
	older, _ := labtest.Pair(t, a.Lab, managedPort)
	a.start(t)
	client, _ := labtest.Pair(t, a.Lab, managedPort)
	bystander, _ := labtest.Pair(t, a.Lab, unmanagedPort)
	follower := a.follow(t, "--verdict", "dead_path")

	t.Run("explain", func(t *testing.T) { a.testExplain(t, client, bystander, older) })
	t.Run("probe alive", func(t *testing.T) {
		r := a.probe(t, client)
		if r.Verdict != "alive_slow" || r.Action != "none" || !r.Evidence.ProbeAnswered {
			t.Errorf("got %+v", r)
		}
		if r := a.probe(t, bystander); r.Verdict != "unmanaged" || r.Reason != "no_policy" {
			t.Errorf("the bystander: %+v", r)
		}
	})
	t.Run("probe dead", func(t *testing.T) { a.testProbeDead(t, client) })
	t.Run("events", func(t *testing.T) { a.testEvents(t, client, follower) })
	t.Run("judgement", func(t *testing.T) { a.testJudgement(t, client) })
	t.Run("peer alone", func(t *testing.T) { a.testPeerAlone(t) })
	if code := a.terminate(t); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

func (a *runAgent) testExplain(t *testing.T, client, bystander, older *net.TCPConn) {
	cookie := strconv.FormatUint(labtest.Cookie(t, client), 10)
	local := labtest.Addr(client.LocalAddr())
	for _, named := range [][]string{
		{client.LocalAddr().String(), client.RemoteAddr().String()},
		{client.LocalAddr().String()},
		{"--cookie", cookie},
		{"--cookie", cookie, "--netns", fmt.Sprint(a.Client.Inode()), fmt.Sprintf("[::ffff:%s]:%d", local.Addr(), local.Port())},
	} {
		x := decoded[api.Explanation](t, a, a.ns, append([]string{"sockets", "explain", "--run-dir", "run", "-o", "json"}, named...)...)
		if x.Schema != 1 || x.Socket.Policy != "buffer" || x.Unmanaged != "" || x.Socket.Cookie != labtest.Cookie(t, client) ||
			x.Socket.IdleBoundMS != 15_000 || !x.Detail.Recorded || x.Detail.Effective != x.Socket.Options {
			t.Errorf("%q: %+v", named, x)
		}
		if x.Rule == nil || x.Rule.File != "policy.yaml" || x.Rule.Line != 3 || x.Rule.CIDR != "10.91.2.0/24" || x.Rule.WindowMS != 1500 ||
			x.Figures == nil || x.Figures.ReportBoundMS != 1500 {
			t.Errorf("%q: rule %+v, figures %+v", named, x.Rule, x.Figures)
		}
	}
	stdout := a.explain(t, client)
	for _, want := range []string{
		fmt.Sprintf("connection       %s -> %s, direction outbound, ipv4\n", client.LocalAddr(), client.RemoteAddr()),
		"policy           buffer\n",
		"rule             buffer (policy.yaml:3), cidr 10.91.2.0/24, ports 7100, outbound, on,5/2/5,15s\n",
		"options          set on,5/2/5,15s\n",
		"idle bound       15s after the last packet\n",
		"in-flight bound  15.2s after the first send\n",
		"with a report    judged within 1.5s by up to 3 attempts\n",
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in:\n%s", want, stdout)
		}
	}
	stdout = a.explain(t, bystander)
	if !strings.Contains(stdout, "policy           none: no policy names the peer") || !strings.Contains(stdout, "idle bound       none by these options\n") {
		t.Errorf("the bystander:\n%s", stdout)
	}
	a.testExplainOlder(t, older)
	a.testNotOne(t)
	a.testNear(t, client)
}

// testExplainOlder: a connection that is older than the agent is managed as any
// other, where the kernel lets it be.
func (a *runAgent) testExplainOlder(t *testing.T, older *net.TCPConn) {
	if !expected(t, []kernel.Feature{kernel.Adopt})[kernel.Adopt.String()] {
		x := decoded[api.Explanation](t, a, a.ns, "sockets", "explain", "--run-dir", "run", "-o", "json", older.LocalAddr().String())
		if x.Unmanaged != "older" || x.Socket.Policy != "" || x.Detail.Recorded || x.Rule == nil {
			t.Errorf("the older one: %+v", x)
		}
		return
	}
	labtest.Eventually(t, 10*time.Second, func() bool { return labtest.Options(t, older).UserTimeout == 15*time.Second }, "the older one to be adopted")
	x := decoded[api.Explanation](t, a, a.ns, "sockets", "explain", "--run-dir", "run", "-o", "json", older.LocalAddr().String())
	if x.Unmanaged != "" || x.Socket.Policy != "buffer" || x.Socket.Direction != "outbound" || !x.Detail.Recorded || x.Rule == nil {
		t.Errorf("the older one: %+v", x)
	}
	if stdout, _, _ := a.output(t, a.ns, "sockets", "--run-dir", "run", "-o", "wide"); !x.Socket.Adopted || strings.Count(stdout, "  >") != 1 {
		t.Errorf("its age is told as that of one that was seen to open: %+v\n%s", x.Socket, stdout)
	}
	if s := a.status(t); len(s.Peers) != 1 || s.Peers[0].Adopted != 1 || s.Peers[0].Opened != 1 {
		t.Errorf("status: %+v", s.Peers)
	}
}

// testNotOne: none, and two with one local address.
func (a *runAgent) testNotOne(t *testing.T) {
	_, stderr, code := a.output(t, a.ns, "sockets", "explain", "--run-dir", "run", "--cookie", "1", "10.91.1.2:1")
	if code != exitFailed || !strings.Contains(stderr, "no such socket") {
		t.Errorf("no socket: exit code %d, %q", code, stderr)
	}
	local := netip.AddrPortFrom(a.ClientAddr4, 45000)
	d := labtest.Dialer{NS: a.Client, Local: local, Setup: func(fd int) error {
		return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	}}
	for _, port := range []uint16{7201, 7202} {
		labtest.PairTo(t, d, a.Server, netip.AddrPortFrom(a.ServerAddr4, port))
	}
	_, stderr, code = a.output(t, a.ns, "sockets", "explain", "--run-dir", "run", local.String())
	if code != exitFailed || !strings.Contains(stderr, "several such sockets, among them 10.91.1.2:45000 -> 10.91.2.2:72") {
		t.Errorf("two sockets: exit code %d, %q", code, stderr)
	}
	if x := decoded[api.Explanation](t, a, a.ns, "sockets", "explain", "--run-dir", "run", "-o", "json", local.String(), "10.91.2.2:7202"); x.Socket.Peer != "10.91.2.2:7202" {
		t.Errorf("with its peer: %+v", x.Socket)
	}
}

// testNear: where nothing is what was asked for, what nearly is is told, or what else
// helps.
func (a *runAgent) testNear(t *testing.T, client *net.TCPConn) {
	scans := expected(t, []kernel.Feature{kernel.Scan})[kernel.Scan.String()]
	local, peer := client.LocalAddr().String(), client.RemoteAddr().String()
	there := fmt.Sprintf("; near it: %s -> %s cookie %d netns %d (", local, peer, labtest.Cookie(t, client), a.Client.Inode())
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"10.91.1.2:1", peer}, "to that peer)"},
		{[]string{local, "10.91.2.2:1"}, there + "of that local address) [name one of these]"},
		{[]string{"--cookie", "1", local, peer}, there + "of these addresses)"},
		{[]string{"--netns", fmt.Sprint(a.Server.Inode()), local}, there + "of these addresses)"},
		{[]string{"--netns", "1", "10.91.1.2:1"}, "network namespace 1 is none that this agent acts in ["},
		{[]string{"10.91.1.2:1", "10.91.2.2:1"}, `["sockhealth sockets" lists what is bounded`},
	} {
		if !scans && tc.want[0] != '[' && tc.want[0] != 'n' { // without a walk nothing near is found
			continue
		}
		for _, command := range []string{"explain", "probe"} {
			_, stderr, code := a.output(t, a.ns, append([]string{"sockets", command, "--run-dir", "run"}, tc.args...)...)
			if code != exitFailed || !strings.Contains(stderr, "no such socket") || !strings.Contains(stderr, tc.want) {
				t.Errorf("%s %q: exit code %d, %q, want %q", command, tc.args, code, stderr, tc.want)
			}
		}
	}
}

// explain asks about a connection, for people.
func (a *runAgent) explain(t *testing.T, c *net.TCPConn) string {
	t.Helper()
	stdout, stderr, code := a.output(t, a.ns, "sockets", "explain", "--run-dir", "run", c.LocalAddr().String(), c.RemoteAddr().String())
	if code != exitOK || stderr != "" {
		t.Fatalf("exit code %d, %q", code, stderr)
	}
	return stdout
}

// probe has a connection probed.
func (a *runAgent) probe(t *testing.T, c *net.TCPConn) report.Result {
	t.Helper()
	p := decoded[api.Probed](t, a, a.ns, "sockets", "probe", "--run-dir", "run", "-o", "json",
		c.LocalAddr().String(), c.RemoteAddr().String())
	if p.Schema != 1 || p.Result.Cookie != labtest.Cookie(t, c) {
		t.Errorf("got %+v", p)
	}
	return p.Result
}

// testProbeDead: what a probe condemns lives all the same, and is found alive
// when the path is well again.
func (a *runAgent) testProbeDead(t *testing.T, client *net.TCPConn) {
	fault := labtest.Fault(t)(a.DropPort(managedPort))
	if r := a.probe(t, client); r.Verdict != "dead_path" || r.Action != "none" || r.Evidence.ProbesSent < 3 {
		t.Errorf("got %+v", r)
	}
	labtest.Heal(t, fault)
	if s := labtest.State(t, client); s != conn.Established {
		t.Fatalf("after a probe the connection is in %s", s)
	}
	if r := a.probe(t, client); r.Verdict != "alive_slow" {
		t.Errorf("the path is well: %+v", r)
	}
}

// follower is a command that goes on.
type follower struct {
	lines <-chan string
	stop  func(syscall.Signal) (code int)
}

// follow starts "events --follow -o json".
func (a *runAgent) follow(t *testing.T, filters ...string) *follower {
	t.Helper()
	cmd := a.command(t, append([]string{"events", "--follow", "--run-dir", "run", "-o", "json"}, filters...)...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	labtest.Start(t, a.ns, cmd)
	lines := make(chan string, 100)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
		_, _ = io.Copy(io.Discard, out)
	}()
	f := &follower{lines: lines, stop: func(sig syscall.Signal) int {
		_ = cmd.Process.Signal(sig)
		for range lines {
		}
		_ = cmd.Wait()
		return cmd.ProcessState.ExitCode()
	}}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // a second end does nothing
		for range lines {
		}
		_ = cmd.Wait()
	})
	return f
}

// testEvents: a follower has had the verdict it asked for, the others are there
// for who comes later.
func (a *runAgent) testEvents(t *testing.T, client *net.TCPConn, f *follower) {
	var e api.Event
	select {
	case line := <-f.lines:
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the follower has no verdict")
	}
	if e.Schema != 1 || e.Kind != "verdict" || e.Policy != "buffer" || e.Cookie != labtest.Cookie(t, client) || e.Netns != a.Client.Inode() ||
		e.Verdict == nil || e.Verdict.Verdict != "dead_path" || e.Verdict.Action != "none" || e.Verdict.Reporter != "admin" {
		t.Errorf("got %+v, %+v", e, e.Verdict)
	}
	if code := f.stop(syscall.SIGINT); code != exitOK {
		t.Errorf("the follower ended with exit code %d", code)
	}
	if line, ok := <-f.lines; ok {
		t.Errorf("the follower was told of more: %s", line)
	}
	again := a.follow(t)
	for range 4 {
		select {
		case <-again.lines:
		case <-time.After(10 * time.Second):
			t.Fatal("the follower is not told of what was before")
		}
	}
	if code := again.stop(syscall.SIGHUP); code != exitOK { // only run reloads
		t.Errorf("SIGHUP ended a follower with exit code %d", code)
	}
	a.testEventsFiltered(t, &e)
	if _, stderr, code := a.output(t, a.ns, "events", "--run-dir", "run", "--since", "12345"); code != exitUsage || !strings.Contains(stderr, "the newest event has number ") {
		t.Errorf("a number to come: exit code %d, %q", code, stderr)
	}
	if _, stderr, code := a.output(t, a.ns, "events", "--run-dir", "run", "--follow", "--policy", "bufer"); code != exitUsage || !strings.Contains(stderr, "the file has buffer\n") {
		t.Errorf("no such policy: exit code %d, %q", code, stderr)
	}
	stdout, _, _ := a.output(t, a.ns, "events", "--run-dir", "run", "--verdict", "dead_path")
	want := fmt.Sprintf("  #%d  verdict  dead_path, none  buffer  %s -> %s  cookie %d netns %d  asked by admin, %d probes unanswered, call 0s, took ",
		e.Seq, client.LocalAddr(), client.RemoteAddr(), e.Cookie, e.Netns, e.Verdict.Evidence.ProbesSent)
	if !strings.Contains(stdout, want) {
		t.Errorf("no %q in %s", want, stdout)
	}
}

// testEventsFiltered: of the four that are kept those are told that are asked for.
func (a *runAgent) testEventsFiltered(t *testing.T, e *api.Event) {
	for _, tc := range []struct {
		filters []string
		want    int // lines
	}{
		{nil, 4},
		{[]string{"--policy", "buffer"}, 3},
		{[]string{"--verdict", "unmanaged"}, 1},
		{[]string{"--action", "closed"}, 0},
		{[]string{"--reporter", "admin", "--action", "none"}, 4},
		{[]string{"--cookie", fmt.Sprint(e.Cookie)}, 3},
		{[]string{"--pod", "none"}, 0},
		{[]string{"--since", "1h"}, 4},
		{[]string{"--since", e.Time.Format(time.RFC3339Nano)}, 2},
		{[]string{"--verdict", "alive_slow"}, 2},
		{[]string{"--kind", "end"}, 0},
		{[]string{"--peer", "10.91.2.2"}, 4},
		{[]string{"--peer", "10.91.3.0/24"}, 0},
		{[]string{"--netns", fmt.Sprint(a.Client.Inode())}, 4},
		{[]string{"--netns", "1"}, 0},
		{[]string{"--since", fmt.Sprint(e.Seq)}, 1},
	} {
		for _, output := range []string{table, asJSON} {
			stdout, stderr, code := a.output(t, a.ns, append([]string{"events", "--run-dir", "run", "-o", output}, tc.filters...)...)
			if code != exitOK || stderr != "" || strings.Count(stdout, "\n") != tc.want {
				t.Errorf("%q -o %s: exit code %d, %q, want %d lines:\n%s", tc.filters, output, code, stderr, tc.want, stdout)
			}
		}
	}
}

// testJudgement: a report that does not wait, and its judgement.
func (a *runAgent) testJudgement(t *testing.T, client *net.TCPConn) {
	id, stderr, code := a.output(t, a.Client, "report", "--run-dir", "run", "--no-wait",
		"--local", client.LocalAddr().String(), "--peer", client.RemoteAddr().String())
	id = strings.TrimSuffix(id, "\n")
	if code != exitOK || stderr != "" || id == "" || strings.Contains(id, "\n") {
		t.Fatalf("exit code %d, %q, %q", code, id, stderr)
	}
	resp := decoded[report.Response](t, a, a.Client, "report", "--run-dir", "run", "--judgement", id, "-o", "json")
	if len(resp.Results) != 1 || resp.Results[0].Verdict != "alive_slow" {
		t.Errorf("got %+v", resp)
	}
	if _, stderr, code := a.output(t, a.Client, "report", "--run-dir", "run", "--judgement", "none"); code != exitFailed || !strings.Contains(stderr, "404") {
		t.Errorf("no such judgement: exit code %d, %q", code, stderr)
	}
}

// testPeerAlone: every connection to the peer is judged, and where there is none
// that is said.
func (a *runAgent) testPeerAlone(t *testing.T) {
	const port = 7150
	addr := netip.AddrPortFrom(a.ServerAddr4, port)
	d := labtest.Dialer{NS: a.Client}
	cookies := make(map[uint64]bool)
	ln := labtest.Listen(t, a.Server, addr)
	for range 3 {
		cookies[labtest.Cookie(t, d.Dial(t, addr))] = true
		labtest.Accept(t, ln)
	}
	resp := decoded[report.Response](t, a, a.Client, "report", "--run-dir", "run", "--peer", addr.String(), "-o", "json")
	for _, r := range resp.Results {
		delete(cookies, r.Cookie)
	}
	if len(resp.Results) != 3 || len(cookies) != 0 {
		t.Errorf("got %+v", resp)
	}
	stdout, stderr, code := a.output(t, a.Client, "report", "--run-dir", "run", "--peer", "10.91.2.2:7151")
	if code != exitOK || strings.Count(stdout, "\n") != 1 || stderr != "sockhealth: this user has no connection to that peer in this network namespace\n" {
		t.Errorf("no connection: exit code %d, %q, %q", code, stdout, stderr)
	}
}

// What is being connected is left to the bound of connect(), which the line says.
func TestReportTextConnecting(t *testing.T) {
	x := &api.Explanation{Socket: api.Socket{State: "syn_sent"}, Rule: &api.Rule{Attempts: 5, ConnectTimeoutMS: 3000}, Figures: new(api.Figures)}
	if got, want := reportText(x), "unknown (connecting), nothing is closed: connect() is bounded by connect_timeout, 3s"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	x.Rule.ConnectTimeoutMS = 0
	if got, want := reportText(x), "unknown (connecting), nothing is closed: connect() is not bounded by this rule (connect_timeout)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
