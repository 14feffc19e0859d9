// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/api"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
)

func TestRun(t *testing.T) {
	a := newRunAgent(t)
	labtest.Enter(t, a.cgroup)
	a.start(t)
	client, server := labtest.Pair(t, a.Lab, managedPort)
	bystander, _ := labtest.Pair(t, a.Lab, unmanagedPort)

	t.Run("ready", a.testReady)
	t.Run("bounds", func(t *testing.T) {
		if o := labtest.Options(t, client); !o.KeepAlive || o.Idle != 5*time.Second || o.UserTimeout != 15*time.Second {
			t.Errorf("managed connection has %+v", o)
		}
		if o := labtest.Options(t, bystander); o.KeepAlive || o.UserTimeout != 0 {
			t.Errorf("connection without a policy has %+v", o)
		}
	})
	t.Run("sockets", func(t *testing.T) { a.testSockets(t, client) })
	t.Run("slow answer", func(t *testing.T) {
		if _, err := client.Write([]byte("request")); err != nil {
			t.Fatal(err)
		}
		r := a.report(t, client, "1s")
		if r.Verdict != "alive_slow" || r.Action != "none" {
			t.Errorf("got %+v", r)
		}
		if _, err := server.Write([]byte("answer")); err != nil {
			t.Fatal(err)
		}
		if err := client.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if n, err := client.Read(make([]byte, 16)); n != 6 || err != nil {
			t.Errorf("read %d bytes, %v", n, err)
		}
	})
	t.Run("namespace not covered", func(t *testing.T) {
		_, stderr, code := a.output(t, a.Server, "report", "--run-dir", "run", "--local", server.LocalAddr().String(),
			"--peer", server.RemoteAddr().String())
		if code != exitFailed || !strings.Contains(stderr, "its --netns does not cover it [start it with --netns all, or with this namespace among its paths]") {
			t.Errorf("exit code %d: %s", code, stderr)
		}
	})
	t.Run("dead path", func(t *testing.T) { a.testDeadPath(t, client) })
	t.Run("status", a.testStatus)
	t.Run("metrics", a.testMetrics)
	t.Run("stop", func(t *testing.T) { a.testStop(t, bystander) })
}

func (a *runAgent) testReady(t *testing.T) {
	lines := a.logged("ready")
	if len(lines) != 1 {
		t.Fatalf("ready is logged %d times", len(lines))
	}
	for key, want := range map[string]any{
		"policy": "policy.yaml", "cgroup": a.cgroup.Path, "run_dir": "run", "version": thisBuild().Version,
	} {
		if lines[0][key] != want {
			t.Errorf("%s is %v, want %v", key, lines[0][key], want)
		}
	}
	if rev, _ := lines[0]["revision"].(string); len(rev) != 12 || strings.HasSuffix(a.listen, ":0") {
		t.Errorf("revision %q, listen %s", rev, a.listen)
	}
}

func (a *runAgent) testDeadPath(t *testing.T, client *net.TCPConn) {
	labtest.Fault(t)(a.DropPort(managedPort))
	if err := client.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil { // before the bound
		t.Fatal(err)
	}
	r := a.report(t, client, "0s") // the answer came before that call
	if r.Verdict != "dead_path" || r.Action != "closed" || r.Policy != "buffer" {
		t.Errorf("got %+v", r)
	}
	if _, err := client.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNABORTED) {
		t.Errorf("the client reads %v, want ECONNABORTED", err)
	}
	if got := a.awaitLogged(t, "verdict", 2); len(got) != 2 || got[1]["verdict"] != "dead_path" {
		t.Errorf("verdicts logged: %v", got)
	}
}

func (a *runAgent) testSockets(t *testing.T, client *net.TCPConn) {
	list := decoded[api.Sockets](t, a, a.ns, "sockets", "--run-dir", "run", "-o", "json")
	if list.Schema != 1 || len(list.Sockets) != 1 {
		t.Fatalf("got %+v", list)
	}
	s := list.Sockets[0]
	if s.Local != client.LocalAddr().String() || s.Peer != client.RemoteAddr().String() ||
		s.Netns != a.Client.Inode() || s.Cookie != labtest.Cookie(t, client) ||
		s.Policy != "buffer" || s.Direction != "outbound" || s.State != "established" {
		t.Errorf("got %+v", s)
	}
	if s.IdleBoundMS != 15_000 || s.Options != s.Policed || s.Policed.IdleS != 5 || s.Policed.UserTimeoutMS != 15_000 {
		t.Errorf("bounds: %+v", s)
	}
	for output, want := range map[string][]string{
		"table": {"NETNS ", "IDLE-BOUND ", " buffer ", " outbound ", " established ", " 15s "},
		"wide":  {"COOKIE ", "POLICED ", " on,5/2/5,15s "},
	} {
		stdout, stderr, code := a.output(t, a.ns, "sockets", "--run-dir", "run", "-o", output)
		if code != exitOK || stderr != "" || strings.Count(stdout, "\n") != 2 {
			t.Errorf("-o %s: exit code %d, %q, %q", output, code, stderr, stdout)
		}
		for _, w := range want {
			if !strings.Contains(stdout, w) {
				t.Errorf("-o %s has no %q:\n%s", output, w, stdout)
			}
		}
	}
}

// The list is doctor's, check by check; what that finds on its bench the agent has.
func (a *runAgent) testFeatures(t *testing.T, features []api.Feature) {
	t.Helper()
	stdout, code := doctorSays(t, asJSON)
	var d diagnosisJSON
	if err := json.Unmarshal(stdout, &d); err != nil || code > exitFailed {
		t.Fatalf("doctor: exit code %d, %v", code, err)
	}
	if len(features) != len(d.Checks) {
		t.Fatalf("%d features, doctor has %d", len(features), len(d.Checks))
	}
	for i, c := range d.Checks {
		f := features[i]
		if f.Name != c.Name || f.Detail == "" || c.Name != "namespaces" && f.Status != c.Status || (f.Remedy == "") != (f.Status == "works" || f.Status == "unneeded") {
			t.Errorf("%+v, doctor says %+v", f, c)
		}
	}
}

func (a *runAgent) testStatus(t *testing.T) {
	s := decoded[api.Status](t, a, a.ns, "status", "--run-dir", "run", "-o", "json")
	if s.Schema != 1 || s.Health != "ok" || s.PID != a.cmd.Process.Pid || s.Cgroup != a.cgroup.Path ||
		s.Policy.File != "policy.yaml" || len(s.Policy.Revision) != 12 || s.Judgements != 0 {
		t.Errorf("got %+v", s)
	}
	// At the start, to the millisecond.
	if l := s.Policy.Loaded; l.Before(s.Started.Truncate(time.Millisecond)) || time.Since(l) < 0 {
		t.Errorf("policy loaded at %s, the agent has started at %s", l, s.Started)
	}
	if strings.Join(s.Programs, " ") != "setsockopt sockops" {
		t.Errorf("programs %v", s.Programs)
	}
	a.testFeatures(t, s.Features)
	p := s.Peers[0]
	if p.Name != "buffer" || p.Opened != 1 || p.Closed != 1 || p.Stale["dead_path"] != 1 || p.Verdicts["alive_slow"] != 1 {
		t.Errorf("got %+v", p)
	}
	stdout, _, code := a.output(t, a.ns, "status", "--run-dir", "run")
	if code != exitOK {
		t.Errorf("exit code %d", code)
	}
	for _, want := range []string{"health       ok\n", "programs     setsockopt, sockops\n", "faults       none\n", "dead_path=1"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("status has no %q:\n%s", want, stdout)
		}
	}
}

func (a *runAgent) testMetrics(t *testing.T) {
	if got := a.get(t, "/-/ready"); got != "ready\n" {
		t.Errorf("ready says %q", got)
	}
	got := a.get(t, "/metrics")
	wantMetric(t, got, `sockhealth_connections_opened_total{direction="outbound",policy="buffer"} 1`)
	wantMetric(t, got, `sockhealth_stale_sockets_total{cause="dead_path",policy="buffer"} 1`)
	wantMetric(t, got, `sockhealth_verdicts_total{policy="buffer",verdict="alive_slow"} 1`)
	wantMetric(t, got, `sockhealth_sockets{policy="buffer"} 0`)
	wantMetric(t, got, `sockhealth_verdict_duration_seconds_count 2`)
}

// testStop: SIGTERM leaves nothing but the run directory with its lock file and the empty
// report directory, and the next connection is nobody's.
func (a *runAgent) testStop(t *testing.T, bystander *net.TCPConn) {
	if code := a.terminate(t); code != exitOK {
		t.Errorf("exit code %d", code)
	}
	for _, name := range []string{api.ReportSocket, api.AdminSocket} {
		if _, err := os.Lstat(a.path("run/" + name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", name, err)
		}
	}
	d := labtest.Dialer{NS: a.Client}
	after, _ := labtest.PairTo(t, d, a.Server, netip.AddrPortFrom(a.ServerAddr4, managedPort))
	if o := labtest.Options(t, after); o.KeepAlive || o.UserTimeout != 0 {
		t.Errorf("the programs are left: a new connection has %+v", o)
	}
	if _, err := bystander.Write([]byte("still here")); err != nil {
		t.Errorf("the bystander: %v", err)
	}
	if _, stderr, code := a.output(t, a.ns, "status", "--run-dir", "run"); code != exitUnreachable {
		t.Errorf("status ended with exit code %d: %s", code, stderr)
	}
}

// A start that fails half-way undoes what it did, and says why in one line.
func TestRunFails(t *testing.T) {
	a := newRunAgent(t)
	labtest.Enter(t, a.cgroup)
	a.start(t)
	// report.sock is the last thing that a start makes.
	if err := os.MkdirAll(a.path("other/report.sock"), 0o755); err != nil {
		t.Fatal(err)
	}
	held := fmt.Sprintf("held by another agent, pid %d", a.cmd.Process.Pid)
	free := labtest.Cgroup(t).Path
	for _, tc := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"run directory held", nil, exitFailed, held},
		{"cgroup held", []string{"--run-dir", "other"}, exitFailed, held},
		{"port taken", []string{"--run-dir", "other", "--cgroup", free, "--listen", a.listen}, exitFailed, "address already in use [choose another --listen]"},
		{"no cgroup v2", []string{"--run-dir", "other", "--cgroup", a.dir}, exitMissing, "is not below a cgroup v2 mount"},
		{"no namespace", []string{"--run-dir", "other", "--netns", "policy.yaml"}, exitFailed, "not a network namespace [" + noNetnsRemedy + "]"},
		{"namespace not there", []string{"--run-dir", "other", "--netns", "none"}, exitFailed, "no such file or directory [" + noNetnsRemedy + "]"},
		{"cgroup not there", []string{"--run-dir", "other", "--cgroup", free + "/none"}, exitFailed, "no such file or directory [" + noCgroupRemedy + "]"},
		{"report.sock in the way", []string{"--run-dir", "other", "--cgroup", free}, exitFailed, "is in the way and no socket [remove it]"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cmd := a.run(t, tc.args...)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			if err := a.ns.Do(cmd.Start); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			if code := cmd.ProcessState.ExitCode(); code != tc.code {
				t.Errorf("exit code %d, want %d", code, tc.code)
			}
			if got := stderr.String(); !strings.Contains(got, tc.want) || strings.Count(got, "\n") != 1 {
				t.Errorf("said %q, want one line with %q", got, tc.want)
			}
			if _, err := os.Lstat(a.path("other/" + api.AdminSocket)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("admin.sock is left: %v", err)
			}
		})
	}
	// The agent that runs is none the worse, and alone in the cgroup.
	if s := a.status(t); s.Health != "ok" {
		t.Errorf("status: %+v", s)
	}
	if code := a.terminate(t); code != exitOK {
		t.Errorf("exit code %d", code)
	}
	c, _ := labtest.Pair(t, a.Lab, managedPort)
	if o := labtest.Options(t, c); o.KeepAlive || o.UserTimeout != 0 {
		t.Errorf("programs of a failed start are left: a new connection has %+v", o)
	}
}

// The status never looks better than the truth: with its cgroup the programs
// go, and nothing is bounded any more.
func TestRunDetached(t *testing.T) {
	a := newRunAgent(t)
	a.start(t)
	var s api.Status
	labtest.Eventually(t, coverageLate, func() bool { // which takes the cgroup, too
		s = a.status(t)
		return s.Coverage.Canary == api.CanaryOK
	}, "the first canary")
	if err := a.cgroup.Close(); err != nil {
		t.Fatal(err)
	}
	labtest.Eventually(t, 10*time.Second, func() bool {
		s = a.status(t)
		return s.Health == api.HealthDegraded && len(s.Programs) == 0 // they go one after the other
	}, "a degraded status without programs")
	if len(s.Problems) != 1 || s.Problems[0] != errDetached.Error() {
		t.Errorf("problems %q", s.Problems)
	}
	if status, got := a.ask(t, "/-/ready"); status != 503 || got != "not ready: "+errDetached.Error()+"\n" {
		t.Errorf("ready says %d %q", status, got)
	}
	if code := a.terminate(t); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}
