// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/api"
	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/report"
)

// Ports of the lab's server: one in the policy, one that is not.
const (
	managedPort   = 7100
	unmanagedPort = 7200
)

const runPolicy = `version: 1
peers:
  - name: buffer
    cidrs: [10.91.2.0/24]
    ports: [7100]
    direction: outbound
    probe: {window: 1500ms, attempts: 3}
`

// runAgent is "sockhealth run" as a process, in a namespace of its own.
type runAgent struct {
	*lab.Lab
	ns     *netns.NS
	cgroup *lab.Cgroup
	dir    string // with policy.yaml; its run/ is the run directory
	bpffs  string // where it pins; "": nowhere
	cmd    *exec.Cmd
	listen string   // of the metrics
	opened int      // connections, by pair
	more   []string // flags of start

	mu  sync.Mutex
	log []map[string]any
}

// newRunAgent prepares a lab and a cgroup.
func newRunAgent(t *testing.T) *runAgent {
	a := &runAgent{
		Lab: labtest.New(t, lab.Options{}), ns: labtest.Netns(t), cgroup: labtest.Cgroup(t), dir: t.TempDir(),
	}
	a.write(t, runPolicy)
	return a
}

// kill ends the agent without a word, and waits until its locks are free: a process that
// it was about to start has them until then.
func (a *runAgent) kill(t *testing.T) {
	t.Helper()
	a.signal(t, syscall.SIGKILL)
	_ = a.cmd.Wait()
	labtest.Eventually(t, 10*time.Second, func() bool {
		lock, err := os.Open(a.path("run/lock"))
		if err != nil {
			t.Fatal(err)
		}
		defer lock.Close()
		return unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
	}, "its locks")
}

// write replaces the policy file, as careful tools do.
func (a *runAgent) write(t *testing.T, policy string) {
	t.Helper()
	err := os.WriteFile(a.path("next.yaml"), []byte(policy), 0o644)
	if err = errors.Join(err, os.Rename(a.path("next.yaml"), a.path("policy.yaml"))); err != nil {
		t.Fatal(err)
	}
}

func (a *runAgent) path(name string) string { return filepath.Join(a.dir, name) }

// command is this program with arguments, to be started in a namespace.
func (a *runAgent) command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, args...)
	cmd.Args[0] = "sockhealth" // see TestMain
	cmd.Dir = a.dir
	return cmd
}

// run is the agent's command line.
func (a *runAgent) run(t *testing.T, more ...string) *exec.Cmd {
	args := []string{
		"run", "--policy", "policy.yaml", "--listen", "127.0.0.1:0", "--cgroup", a.cgroup.Path,
		"--netns", fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), a.Client.FD()),
		"--run-dir", "run", "--log-format", "json",
	}
	if a.bpffs == "" {
		args = append(args, "--no-pin")
	} else {
		args = append(args, "--bpffs", a.bpffs)
	}
	return a.command(t, append(args, more...)...)
}

// start starts the agent and returns when it is ready.
func (a *runAgent) start(t *testing.T) {
	t.Helper()
	a.cmd = a.run(t, a.more...)
	stderr, err := a.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	labtest.Start(t, a.ns, a.cmd)
	ended := make(chan struct{})
	ready := make(chan string, 1)
	go func() {
		defer close(ended)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			a.line(lines.Bytes(), ready)
		}
	}()
	t.Cleanup(func() {
		_ = a.cmd.Process.Kill() // a second end does nothing
		<-ended
		_ = a.cmd.Wait()
		if t.Failed() {
			a.mu.Lock()
			defer a.mu.Unlock()
			for _, l := range a.log {
				t.Log(l)
			}
		}
	})
	select {
	case a.listen = <-ready:
	case <-ended:
		t.Fatal("the agent ended before it was ready")
	case <-time.After(30 * time.Second):
		t.Fatal("the agent is not ready")
	}
}

func (a *runAgent) line(b []byte, ready chan<- string) {
	var line map[string]any
	if err := json.Unmarshal(b, &line); err != nil {
		line = map[string]any{"not json": string(b)}
	}
	a.mu.Lock()
	a.log = append(a.log, line)
	a.mu.Unlock()
	if line["msg"] == "ready" {
		ready <- fmt.Sprint(line["listen"])
	}
}

// logged returns the lines with this message.
func (a *runAgent) logged(msg string) (out []map[string]any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, l := range a.log {
		if l["msg"] == msg {
			out = append(out, l)
		}
	}
	return out
}

// awaitLogged returns the lines with this message once there are so many: what the agent
// says is read a little later.
func (a *runAgent) awaitLogged(t *testing.T, msg string, n int) []map[string]any {
	t.Helper()
	labtest.Eventually(t, time.Minute, func() bool { return len(a.logged(msg)) >= n }, "the log: "+msg)
	return a.logged(msg)
}

// output runs a command in a namespace and returns what it wrote and its code.
func (a *runAgent) output(t *testing.T, ns *netns.NS, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := a.command(t, args...)
	var out, msg bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &msg
	if err := ns.Do(cmd.Start); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), msg.String(), cmd.ProcessState.ExitCode()
}

// decoded runs a command that must succeed and decodes its JSON.
func decoded[T any](t *testing.T, a *runAgent, ns *netns.NS, args ...string) (v T) {
	t.Helper()
	stdout, stderr, code := a.output(t, ns, args...)
	if code != exitOK {
		t.Fatalf("%q ended with exit code %d: %s", args, code, stderr)
	}
	if err := json.Unmarshal([]byte(stdout), &v); err != nil {
		t.Fatalf("%q: %v in %s", args, err, stdout)
	}
	return v
}

// get asks the metrics server for what must be there.
func (a *runAgent) get(t *testing.T, path string) string {
	t.Helper()
	status, body := a.ask(t, path)
	if status != http.StatusOK {
		t.Fatalf("GET %s: status %d: %s", path, status, body)
	}
	return body
}

// ask asks the metrics server.
func (a *runAgent) ask(t *testing.T, path string) (status int, body string) {
	t.Helper()
	var c net.Conn
	if err := a.ns.Do(func() (err error) {
		c, err = net.Dial("tcp4", a.listen)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", path)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// wantMetric fails the test unless the series is there with that value.
func wantMetric(t *testing.T, metrics, line string) {
	t.Helper()
	if !strings.Contains(metrics, "\n"+line+"\n") {
		name, _, _ := strings.Cut(line, "{")
		var have []string
		for l := range strings.Lines(metrics) {
			if strings.HasPrefix(l, name) {
				have = append(have, l)
			}
		}
		t.Errorf("no %s, but %q", line, have)
	}
}

// status asks the agent how it is.
func (a *runAgent) status(t *testing.T) api.Status {
	t.Helper()
	s, err := api.Dial(a.path("run")).Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return *s
}

// signal sends a signal to the agent.
func (a *runAgent) signal(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := a.cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

// terminate sends SIGTERM and returns the exit code.
func (a *runAgent) terminate(t *testing.T) int {
	t.Helper()
	a.signal(t, syscall.SIGTERM)
	labtest.Eventually(t, time.Minute, func() bool {
		var info unix.Siginfo
		// Without reaping: Wait is for the clean-up.
		err := unix.Waitid(unix.P_PID, a.cmd.Process.Pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		return err == nil && info.Signo != 0
	}, "the agent's end")
	_ = a.cmd.Wait()
	return a.cmd.ProcessState.ExitCode()
}

// report reports a call on c of that age, by the command line.
func (a *runAgent) report(t *testing.T, c *net.TCPConn, elapsed string) report.Result {
	t.Helper()
	resp := decoded[struct {
		Schema  int
		Results []report.Result
	}](t, a, a.Client, "report", "--run-dir", "run", "-o", "json", "--elapsed", elapsed,
		"--local", c.LocalAddr().String(), "--peer", c.RemoteAddr().String())
	if resp.Schema != 1 || len(resp.Results) != 1 {
		t.Fatalf("got %+v", resp)
	}
	return resp.Results[0]
}
