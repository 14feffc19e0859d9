// SPDX-License-Identifier: Apache-2.0

package cases

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
)

// TestStoppedAgent: the agent is stopped in the middle of two judgements, for longer
// than their whole window. Meanwhile the one path heals. What was not asked condemns
// nobody, and what is dead is closed.
func TestStoppedAgent(t *testing.T) {
	n := newNode(t, 1, `version: 1
defaults: {user_timeout: 60s, keepalive: {idle: 5s, interval: 5s, count: 5}, probe: {window: 5s, attempts: 3}}
peers: [{name: server, cidrs: [10.91.2.0/24]}]
`)
	labtest.Enter(t, n.cgroup)
	a := n.start(t)
	ln := labtest.Listen(t, n.Server, netip.AddrPortFrom(n.ServerAddr4, 7100))
	var ends [2]struct {
		client, server *net.TCPConn
		fault          *lab.Fault
		report         *exec.Cmd
		said           bytes.Buffer
	}
	for i := range ends {
		e := &ends[i]
		e.client = labtest.Dial(t, n.Client, netip.AddrPort{}, labtest.Addr(ln.Addr()))
		e.server = labtest.Accept(t, ln)
		e.fault = labtest.Fault(t)(n.StateLoss(labtest.Addr(e.client.LocalAddr()), labtest.Addr(e.client.RemoteAddr())))
		e.client.Write([]byte("request"))
		e.report = n.command(t, os.Getenv(program), "report", "--run-dir", "run", "--elapsed", "0s",
			"--local", e.client.LocalAddr().String(), "--peer", e.client.RemoteAddr().String())
		e.report.Stdout = &e.said
	}
	for i := range ends {
		labtest.Start(t, n.Client, ends[i].report)
	}
	labtest.Eventually(t, late, func() bool { return n.status(t).Judgements == len(ends) }, "both judgements")
	signal := func(s syscall.Signal) {
		t.Helper()
		if err := a.cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	signal(syscall.SIGSTOP)
	stopped := conn.Now()
	labtest.Eventually(t, late, func() bool { return conn.Now()-stopped > 6*time.Second }, "a window to pass")
	labtest.Heal(t, ends[0].fault)
	signal(syscall.SIGCONT)
	for i := range ends {
		_ = ends[i].report.Wait() // its exit code is that of the verdict
	}
	healed, dead := &ends[0], &ends[1]
	if !strings.Contains(healed.said.String(), "alive") {
		t.Errorf("verdict on the one that healed:\n%s", healed.said.String())
	}
	healed.server.SetReadDeadline(time.Now().Add(late))
	if _, err := io.ReadFull(healed.server, make([]byte, 7)); err != nil {
		t.Errorf("the request: %v", err)
	}
	dead.client.SetReadDeadline(time.Now().Add(late))
	if _, err := dead.client.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNABORTED) {
		t.Errorf("the dead one: %v, want ECONNABORTED\n%s", err, dead.said.String())
	}
}
