// SPDX-License-Identifier: Apache-2.0

package cases

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/api"
	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
	"github.com/sockhealth/sockhealth/internal/netns"
)

// late is how long what ought to come may take on a machine that has much to do.
const late = 30 * time.Second

// node is a lab with an agent on it, which works in the namespaces of the ends
// and in a cgroup of its own.
type node struct {
	*lab.Lab
	ns     *netns.NS // the agent's
	cgroup *lab.Cgroup
	dir    string // with policy.yaml; its run/ is the run directory
	bpffs  string
	admin  *api.Client
}

// newNode prepares a lab with that many servers and a policy. No agent runs yet.
func newNode(t *testing.T, servers int, policy string) *node {
	t.Helper()
	n := &node{
		Lab: labtest.New(t, lab.Options{Servers: servers}), ns: labtest.Netns(t), cgroup: labtest.Cgroup(t),
		dir: t.TempDir(), bpffs: loadertest.BPFFS(t),
	}
	n.admin = api.Dial(filepath.Join(n.dir, "run"))
	n.write(t, policy)
	t.Cleanup(func() {
		if pins, err := loader.FindPins(n.bpffs); err == nil {
			if err := errors.Join(pins.Remove(), pins.Close()); err != nil {
				t.Error(err)
			}
		}
	})
	return n
}

// needAdopt ends the test where the kernel cannot adopt connections.
func needAdopt(t *testing.T) {
	t.Helper()
	loadertest.Need(t, loadertest.Load(t), kernel.Adopt)
}

// write replaces the policy file, as careful tools do.
func (n *node) write(t *testing.T, policy string) {
	t.Helper()
	next := filepath.Join(n.dir, "next.yaml")
	err := os.WriteFile(next, []byte(policy), 0o644)
	if err = errors.Join(err, os.Rename(next, filepath.Join(n.dir, "policy.yaml"))); err != nil {
		t.Fatal(err)
	}
}

// spaces are the namespaces of the ends, for --netns.
func (n *node) spaces() string {
	paths := []string{fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.Client.FD())}
	for _, s := range n.Servers {
		paths = append(paths, fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), s.NS.FD()))
	}
	return strings.Join(paths, ",")
}

// command is a program with arguments, which ends with the test.
func (n *node) command(t *testing.T, path string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Dir = n.dir
	return cmd
}

// output runs sockhealth in a namespace; it must succeed.
func (n *node) output(t *testing.T, ns *netns.NS, args ...string) string {
	t.Helper()
	cmd := n.command(t, os.Getenv(program), args...)
	var out, msg bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &msg
	if err := ns.Do(cmd.Start); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("sockhealth %q: %v: %s", args, err, msg.String())
	}
	return out.String()
}

// status asks the agent how it is.
func (n *node) status(t *testing.T) *api.Status {
	t.Helper()
	s, err := n.admin.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// peer is what the status says of one entry of the policy.
func (n *node) peer(t *testing.T, name string) api.PolicyStatus {
	t.Helper()
	s := n.status(t)
	for _, p := range s.Peers {
		if p.Name == name {
			return p
		}
	}
	t.Fatalf("no peer %q in status %+v", name, s)
	return api.PolicyStatus{}
}

// wantHealthy: the agent has nothing to complain of.
func (n *node) wantHealthy(t *testing.T) {
	t.Helper()
	if s := n.status(t); s.Health != api.HealthOK || len(s.Faults) > 0 {
		t.Errorf("status %+v", s)
	}
}

// agent is one process of "sockhealth run".
type agent struct {
	cmd   *exec.Cmd
	ready chan struct{} // closed then
	ended chan struct{} // closed when it has ended

	mu  sync.Mutex
	log []line
}

// line is one of its log.
type line struct {
	Time  time.Time
	Level string
	Msg   string
	text  string
}

// launch starts an agent of a program and does not wait for it.
func (n *node) launch(t *testing.T, path string) *agent {
	t.Helper()
	a := &agent{ready: make(chan struct{}), ended: make(chan struct{})}
	a.cmd = n.command(t, path, "run", "--policy", "policy.yaml", "--listen", "127.0.0.1:0", "--cgroup", n.cgroup.Path,
		"--netns", n.spaces(), "--run-dir", "run", "--bpffs", n.bpffs, "--log-format", "json")
	stderr, err := a.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	labtest.Start(t, n.ns, a.cmd)
	go func() {
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			a.said(lines.Bytes())
		}
		_ = a.cmd.Wait()
		close(a.ended)
	}()
	t.Cleanup(func() {
		a.kill()
		if t.Failed() {
			t.Logf("the agent %d said:\n%s", a.cmd.Process.Pid, a.words())
		}
	})
	return a
}

// start starts an agent and returns when it is ready.
func (n *node) start(t *testing.T) *agent {
	t.Helper()
	a := n.launch(t, os.Getenv(program))
	a.await(t)
	return a
}

// await returns when it is ready.
func (a *agent) await(t *testing.T) {
	t.Helper()
	select {
	case <-a.ready:
	case <-a.ended:
		t.Fatal("the agent ended before it was ready")
	case <-time.After(2 * late):
		t.Fatal("the agent is not ready")
	}
}

func (a *agent) said(b []byte) {
	l := line{text: string(b)}
	if err := json.Unmarshal(b, &l); err != nil {
		l.Level, l.Msg = "ERROR", string(b) // "sockhealth: ..." of a start that fails
	}
	a.mu.Lock()
	a.log = append(a.log, l)
	a.mu.Unlock()
	if l.Msg == "ready" {
		close(a.ready)
	}
}

// words is its log.
func (a *agent) words() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var b strings.Builder
	for _, l := range a.log {
		b.WriteString(l.text + "\n")
	}
	return b.String()
}

// complaints are its lines that tell of something wrong.
func (a *agent) complaints() (out []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, l := range a.log {
		if l.Level != "INFO" {
			out = append(out, l.text)
		}
	}
	return out
}

// kill ends it at once. A second one does nothing.
func (a *agent) kill() {
	_ = a.cmd.Process.Kill()
	<-a.ended
}

// stop ends it as an operator does.
func (a *agent) stop(t *testing.T) {
	t.Helper()
	if err := a.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-a.ended:
	case <-time.After(late):
		t.Fatal("the agent does not end")
	}
	if code := a.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("the agent ended with exit code %d", code)
	}
}
