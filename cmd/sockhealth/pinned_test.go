// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
)

// unset is what the kernel reports of a socket that nobody touched.
var unset = conn.Options{Idle: 2 * time.Hour, Interval: 75 * time.Second, Count: 9}

// newPinned is a runAgent that pins.
func newPinned(t *testing.T) *runAgent {
	a := newRunAgent(t)
	a.bpffs = loadertest.BPFFS(t)
	labtest.Enter(t, a.cgroup)
	t.Cleanup(func() {
		if pins, err := loader.FindPins(a.bpffs); err == nil {
			if err := errors.Join(pins.Remove(), pins.Close()); err != nil {
				t.Error(err)
			}
		}
	})
	return a
}

// bounded says whether a connection that opens now is.
func (a *runAgent) bounded(t *testing.T) bool {
	t.Helper()
	a.opened++
	c, _ := labtest.PairTo(t, labtest.Dialer{NS: a.Client}, a.Server, netip.AddrPortFrom(a.ServerAddr4, managedPort))
	o := labtest.Options(t, c)
	return o.KeepAlive && o.Idle == 5*time.Second && o.UserTimeout == 15*time.Second
}

// unattended reads the metric.
func (a *runAgent) unattended(t *testing.T) time.Duration {
	t.Helper()
	m := regexp.MustCompile(`(?m)^sockhealth_policy_unattended_seconds (\S+)$`).FindStringSubmatch(a.get(t, "/metrics"))
	if m == nil {
		t.Fatal("no sockhealth_policy_unattended_seconds")
	}
	s, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(s * float64(time.Second))
}

// TestRunPinned: connections are bounded while no agent runs, after a stop and
// after a kill; the next start goes on where the last one was.
func TestRunPinned(t *testing.T) {
	a := newPinned(t)
	a.start(t)
	if !a.bounded(t) || a.unattended(t) != 0 {
		t.Error("with the first agent: not bounded, or not new")
	}
	stopped := time.Now() // a little later, in truth
	if code := a.terminate(t); code != exitOK {
		t.Errorf("exit code %d", code)
	}
	if !a.bounded(t) {
		t.Error("after a stop: not bounded")
	}

	a.start(t)
	if got := a.unattended(t); got <= 0 || got > time.Since(stopped) {
		t.Errorf("unattended for %v", got)
	}
	if !a.bounded(t) {
		t.Error("with the second agent: not bounded")
	}
	wantMetric(t, a.get(t, "/metrics"), fmt.Sprintf(`sockhealth_connections_opened_total{direction="outbound",policy="buffer"} %d`, a.opened))
	if took := a.logged("took over from the agent before"); len(took) != 1 || took[0]["revision"] != a.status(t).Policy.Revision {
		t.Errorf("logged %v", took)
	}
	a.kill(t)
	if !a.bounded(t) {
		t.Error("after a kill: not bounded")
	}

	a.start(t)
	if s := a.status(t); s.Health != "ok" || len(s.Programs) != 2 || s.Peers[0].Opened != uint64(a.opened) {
		t.Errorf("status %+v, want %d opened", s, a.opened)
	}
	a.testSecondAgent(t)
	a.terminate(t)
	a.testBadStarts(t)
}

// testBadStarts: a bad start leaves what is pinned in force, and the policy, wherever it
// ends.
func (a *runAgent) testBadStarts(t *testing.T) {
	t.Helper()
	a.write(t, strings.Replace(runPolicy, "peers:", "defaults: {user_timeout: 60s}\npeers:", 1))
	defer a.write(t, runPolicy)
	if err := os.Mkdir(a.path("run/report.sock"), 0o755); err != nil { // made when all else is there
		t.Fatal(err)
	}
	defer os.Remove(a.path("run/report.sock"))
	for _, more := range [][]string{{"--listen", "127.0.0.1:x"}, {"--policy", "none.yaml"}, {"--listen", "192.0.2.1:9757"}, nil} {
		cmd := a.run(t, more...)
		if err := a.ns.Do(cmd.Run); err == nil {
			t.Errorf("%v: started", more)
		}
		if !a.bounded(t) {
			t.Errorf("after %v: not bounded", more)
		}
	}
	// A first one leaves nothing.
	if _, stderr, code := a.output(t, a.ns, "detach", "--yes", "--bpffs", a.bpffs); code != exitOK {
		t.Fatal(stderr)
	}
	cmd := a.run(t, "--listen", "192.0.2.1:9757")
	if err := a.ns.Do(cmd.Run); err == nil {
		t.Error("started")
	}
	if _, err := os.Lstat(a.bpffs); !os.IsNotExist(err) {
		t.Errorf("the directory of pins: %v", err)
	}
	if a.bounded(t) {
		t.Error("bounded by a start that failed")
	}
}

// testSecondAgent: it is told who the first is, in whatever directories it is to
// work, and detach is, too.
func (a *runAgent) testSecondAgent(t *testing.T) {
	t.Helper()
	held := fmt.Sprintf("held by another agent, pid %d, since ", a.cmd.Process.Pid)
	elsewhere := labtest.Cgroup(t).Path
	below := filepath.Join(a.cgroup.Path, "below")
	if err := os.Mkdir(below, 0o755); err != nil {
		t.Fatal(err)
	}
	for what, args := range map[string][]string{
		"the cgroup":                       a.run(t, "--run-dir", "other", "--bpffs", loadertest.BPFFS(t)).Args[1:],
		"the cgroup, where none is pinned": a.run(t, "--run-dir", "other", "--no-pin").Args[1:],
		"a cgroup below it":                a.run(t, "--run-dir", "other", "--cgroup", below, "--bpffs", loadertest.BPFFS(t)).Args[1:],
		"the pins":                         a.run(t, "--run-dir", "other", "--cgroup", elsewhere).Args[1:],
		"detach":                           {"detach", "--yes", "--bpffs", a.bpffs},
	} {
		if _, stderr, code := a.output(t, a.ns, args...); code != exitFailed || !strings.Contains(stderr, held) {
			t.Errorf("%s: exit code %d, %q", what, code, stderr)
		}
	}
	if s := a.status(t); s.Health != "ok" {
		t.Errorf("the first agent: %+v", s)
	}
}

// TestDetach: nothing is pinned and connections open unbounded; those that are open
// keep what they have, or have back what their applications asked for.
func TestDetach(t *testing.T) {
	labtest.Everywhere(t)
	a := newPinned(t)
	for _, restore := range []bool{false, true} {
		t.Run(fmt.Sprintf("restore %v", restore), func(t *testing.T) {
			a.start(t)
			programs := loadertest.Load(t)
			plain, _ := labtest.Pair(t, a.Lab, managedPort)
			d := labtest.Dialer{NS: a.Client, KeepAlive: true}
			goes, _ := labtest.PairTo(t, d, a.Server, netip.AddrPortFrom(a.ServerAddr4, managedPort))
			labtest.Setsockopt(t, plain, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 600_000)
			had := labtest.Options(t, plain)
			a.terminate(t)

			if _, stderr, code := a.output(t, a.ns, "detach", "--bpffs", a.bpffs); code != exitFailed || !strings.Contains(stderr, "--yes") {
				t.Errorf("without an answer: exit code %d, %q", code, stderr)
			}
			args := []string{"detach", "--yes", "--bpffs", a.bpffs}
			if restore {
				args = append(args, "--restore")
			}
			stdout, stderr, code := a.output(t, a.ns, args...)
			if restore && !loadertest.Has(t, programs, kernel.Adopt) {
				if code != exitMissing || !a.bounded(t) {
					t.Errorf("exit code %d, %q", code, stderr)
				}
				return
			}
			if code != exitOK || !strings.HasSuffix(stdout, "detached, and removed "+a.bpffs+"\n") {
				t.Fatalf("exit code %d, %q, %q", code, stdout, stderr)
			}
			if _, err := os.Lstat(a.bpffs); !os.IsNotExist(err) {
				t.Errorf("the directory of pins: %v", err)
			}
			if a.bounded(t) {
				t.Error("a connection is bounded")
			}
			if !restore {
				if got := labtest.Options(t, plain); got != had || !got.KeepAlive {
					t.Errorf("it has %+v, had %+v", got, had)
				}
				return
			}
			if !strings.Contains(stdout, "2 connections have back") {
				t.Errorf("said %q", stdout)
			}
			want := unset
			want.UserTimeout = 10 * time.Minute
			if got := labtest.Options(t, plain); got != want {
				t.Errorf("it has %+v, want %+v", got, want)
			}
			if got := labtest.Options(t, goes); !got.KeepAlive || got.Idle != 15*time.Second || got.Count != 9 || got.UserTimeout != 0 {
				t.Errorf("Go's has %+v", got)
			}
		})
	}
	if stdout, _, code := a.output(t, a.ns, "detach", "--bpffs", a.bpffs+"/none"); code != exitOK || !strings.Contains(stdout, "nothing is pinned") {
		t.Errorf("exit code %d, %q", code, stdout)
	}
}

// TestPinsRemoved: while the agent runs connections are bounded all the same, and
// the status says what will be without it.
func TestPinsRemoved(t *testing.T) {
	a := newPinned(t)
	a.start(t)
	if err := os.RemoveAll(a.bpffs); err != nil {
		t.Fatal(err)
	}
	s := a.status(t) // adoption, too, may have come too late for the pin that it makes
	if s.Health != "degraded" || len(s.Problems) == 0 || !strings.Contains(s.Problems[0], "pins are missing") || !a.bounded(t) {
		t.Errorf("status %+v", s)
	}
	a.terminate(t)
	labtest.Eventually(t, 10*time.Second, func() bool { return !a.bounded(t) }, "the end of the programs")
	a.start(t)
	if s := a.status(t); s.Health != "ok" || !a.bounded(t) {
		t.Errorf("status %+v", s)
	}
	a.testFaultsBefore(t)
}

// testFaultsBefore: what went wrong before this start is told, and makes nothing
// degraded; what does since then is a problem.
func (a *runAgent) testFaultsBefore(t *testing.T) {
	t.Helper()
	const none = loader.Fault(0)
	loadertest.CountFault(t, a.bpffs, none, 3)
	if s := a.status(t); s.Health != "degraded" || s.Faults[none.String()] != 3 || len(s.FaultsBefore) != 0 {
		t.Errorf("status %+v", s)
	}
	a.terminate(t)
	loadertest.CountFault(t, a.bpffs, loader.FaultEventLost, 2)
	a.start(t)
	s := a.status(t)
	if s.Health != "ok" || len(s.Faults) != 0 || s.EventsDropped != 0 || s.FaultsBefore[none.String()] != 3 || s.FaultsBefore["event_lost"] != 2 {
		t.Errorf("after a restart: status %+v", s)
	}
	stdout, _, _ := a.output(t, a.ns, "status", "--run-dir", "run")
	if want := "none, before this start event_lost=2 no_socket=3\n"; !strings.Contains(stdout, want) {
		t.Errorf("no %q in\n%s", want, stdout)
	}
	loadertest.CountFault(t, a.bpffs, none, 4)
	if s := a.status(t); s.Health != "degraded" || s.Faults[none.String()] != 1 {
		t.Errorf("after one more: status %+v", s)
	}
}
