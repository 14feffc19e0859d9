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

// reportSocket is where the bed's agent hears reports.
func (b *bed) reportSocket() string { return filepath.Join(b.runDir(), "report.sock") }

// runDir is where the bed's agent has its sockets.
func (b *bed) runDir() string { return filepath.Join(b.dir, "run") }

// startAgent starts "sockhealth run" for the client's namespace and cgroup. The
// agent itself stands in a namespace of its own, as it would in that of the
// host: its metrics listen there, and on nothing of this machine's.
func (b *bed) startAgent(ctx context.Context, policy string) error {
	var err error
	if b.cgroup, err = b.stage.newCgroup(); err != nil {
		return err
	}
	b.later(b.cgroup.Close)
	node, err := netns.New()
	if err != nil {
		return err
	}
	b.later(node.Close)
	file := filepath.Join(b.dir, "policy.yaml")
	if err := os.WriteFile(file, []byte(policy), 0o644); err != nil {
		return fmt.Errorf("write policy: %w", err)
	}
	p, err := b.start(command{name: "agent", ns: node, args: []string{
		"run", "--policy", file, "--listen", "127.0.0.1:9757",
		"--cgroup", b.cgroup.Path,
		"--netns", fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), b.lab.Client.FD()),
		"--run-dir", b.runDir(), "--no-pin", "--nested",
	}})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	return p.await(ctx, answers(ctx, b.reportSocket()))
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
