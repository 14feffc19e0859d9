// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/sockhealth/sockhealth/internal/netns"
)

// poolPolicy is the policy of the runs with sockhealth: the defaults, and where
// the peer and its replacement are.
const poolPolicy = `version: 1
peers:
  - name: buffer
    cidrs: [10.91.2.0/23]
    ports: [7100]
`

// runDir is where the run's agent has its sockets.
func (r *poolRun) runDir() string { return filepath.Join(r.dir, "run") }

// startAgent starts "sockhealth run" for the client's namespace and cgroup. The
// agent itself stands in a namespace of its own, as it would in that of the
// host: its metrics listen there, and on nothing of this machine's.
func (r *poolRun) startAgent(ctx context.Context) error {
	var err error
	if r.cgroup, err = r.stage.newCgroup(); err != nil {
		return err
	}
	r.later(r.cgroup.Close)
	node, err := netns.New()
	if err != nil {
		return err
	}
	r.later(node.Close)
	policy := filepath.Join(r.dir, "policy.yaml")
	if err := os.WriteFile(policy, []byte(poolPolicy), 0o644); err != nil {
		return fmt.Errorf("write policy: %w", err)
	}
	p, err := r.start(command{name: "agent", ns: node, args: []string{
		"run", "--policy", policy, "--listen", "127.0.0.1:9757",
		"--cgroup", r.cgroup.Path,
		"--netns", fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), r.lab.Client.FD()),
		"--run-dir", r.runDir(), "--bpffs", filepath.Join(r.dir, "bpf"),
	}})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	return p.await(ctx, answers(ctx, filepath.Join(r.runDir(), "report.sock")))
}

// answers is closed when somebody accepts connections at a Unix socket.
func answers(ctx context.Context, path string) <-chan struct{} {
	ready := make(chan struct{})
	go func() {
		for {
			if c, err := net.Dial("unix", path); err == nil {
				_ = c.Close()
				close(ready)
				return
			}
			if !sleep(ctx, 20*time.Millisecond) {
				return
			}
		}
	}()
	return ready
}
