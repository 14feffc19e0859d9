// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/api"
	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/policy"
)

// late is how long what ought to come may take on a machine that has much to do.
const late = 30 * time.Second

// servers is how many there are, on networks 2 to 7. Whatever becomes of single
// connections, each of their addresses is heard all the time: it is not this node.
const servers = 6

// bed is where connections are judged: two clients with an agent between them, one of
// which has a proxy on its way.
type bed struct {
	*lab.Lab
	desk    *desk // of its client's applications
	proxied struct {
		*lab.Lab
		desk   *desk
		ln     *net.TCPListener // the proxy's
		taking sync.Mutex       // held from a connect to the accept that belongs to it
	}
	probes []policy.Probe // by entry
	has    map[kernel.Feature]bool
	dir    string // of the policy
	agent  *agent
	admin  *api.Client

	mu    sync.Mutex
	ports [capped + 1]int // taken so far, by entry
}

// newBed builds it, and starts the agent.
func newBed(t *testing.T) *bed {
	t.Helper()
	b := &bed{Lab: labtest.New(t, lab.Options{Servers: servers}), probes: rules(t), has: map[kernel.Feature]bool{}}
	b.proxied.Lab = labtest.New(t, lab.Options{})
	programs := loadertest.Load(t)
	for _, f := range []kernel.Feature{kernel.Provoke, kernel.Guard, kernel.RTOCap} {
		b.has[f] = loadertest.Has(t, programs, f)
	}
	dir, ns, cgroup := t.TempDir(), labtest.Netns(t), labtest.Cgroup(t)
	b.dir = dir
	labtest.Enter(t, cgroup)
	if err := os.WriteFile(filepath.Join(dir, "policy.yaml"), []byte(policyText), 0o644); err != nil {
		t.Fatal(err)
	}
	b.agent = startAgent(t, ns, dir, "--cgroup", cgroup.Path, "--netns", space(b.Client)+","+space(b.proxied.Client))
	run := filepath.Join(dir, "run")
	b.admin = api.Dial(run)
	b.desk = newDesk(t, b.Client, run)
	b.proxied.desk = newDesk(t, b.proxied.Client, run)
	labtest.Redirect(t, b.proxied.Client, proxied, proxying)
	b.proxied.ln = labtest.Listen(t, b.proxied.Client, netip.AddrPortFrom(netip.IPv4Unspecified(), proxying))
	return b
}

// space names a namespace for --netns.
func space(ns *netns.NS) string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.FD()) }

// port takes one that falls under an entry.
func (b *bed) port(entry int) uint16 {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ports[entry]++
	return uint16(firstOf + entry*portsOf + b.ports[entry]%portsOf)
}

// agent is "sockhealth run".
type agent struct {
	cmd *exec.Cmd

	mu  sync.Mutex
	log []string // lines that are not of level INFO
}

// startAgent starts one and returns when it is ready.
func startAgent(t *testing.T, ns *netns.NS, dir string, more ...string) *agent {
	t.Helper()
	args := []string{"run", "--policy", "policy.yaml", "--listen", "127.0.0.1:0", "--run-dir", "run", "--no-pin", "--log-format", "json"}
	a := &agent{cmd: exec.Command(os.Getenv(program), append(args, more...)...)}
	a.cmd.Dir = dir
	stderr, err := a.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	labtest.Start(t, ns, a.cmd)
	ready, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			if a.said(lines.Bytes()) {
				close(ready)
			}
		}
	}()
	t.Cleanup(func() {
		_ = a.cmd.Process.Kill()
		<-ended
		_ = a.cmd.Wait()
		if t.Failed() {
			t.Logf("the agent complained:\n%s", strings.Join(a.complaints(), "\n"))
		}
	})
	select {
	case <-ready:
	case <-ended:
		t.Fatalf("the agent ended before it was ready: %s", a.complaints())
	case <-time.After(2 * late):
		t.Fatal("the agent is not ready")
	}
	return a
}

// said takes a line of its log; ready reports whether it says so.
func (a *agent) said(b []byte) (ready bool) {
	var l struct{ Level, Msg string }
	if err := json.Unmarshal(bytes.TrimSpace(b), &l); err == nil && l.Level == "INFO" {
		return l.Msg == "ready"
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.log = append(a.log, string(b))
	return false
}

// told reports whether it has complained so, which was to be expected this time.
func (a *agent) told(words string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, line := range slices.Backward(a.log) {
		if strings.Contains(line, words) {
			a.log = slices.Delete(a.log, i, i+1)
			return true
		}
	}
	return false
}

// complaints are its lines that tell of something wrong.
func (a *agent) complaints() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]string(nil), a.log...)
}
