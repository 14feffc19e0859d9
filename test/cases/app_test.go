// SPDX-License-Identifier: Apache-2.0

package cases

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/netns"
)

// app is an application with one connection.
type app struct {
	name  string
	way   way
	far   *net.TCPConn // its peer's end
	pid   int
	lines chan string
	fd    int // of its socket, in this process
}

// startApp starts one, which ends with the test.
func startApp(t *testing.T, cmd *exec.Cmd, ns *netns.NS, cgroup *lab.Cgroup) *app {
	t.Helper()
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: cgroup.FD()}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	labtest.Start(t, ns, cmd)
	a := &app{pid: cmd.Process.Pid, lines: make(chan string, 16)}
	go func() {
		defer close(a.lines)
		for said := bufio.NewScanner(out); said.Scan(); {
			a.lines <- said.Text()
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		for range a.lines {
		}
		_ = cmd.Wait()
	})
	return a
}

// want waits for the next line.
func (a *app) want(t *testing.T, line string) {
	t.Helper()
	select {
	case got := <-a.lines:
		if got != line {
			t.Fatalf("%s: said %q, want %q", a.name, got, line)
		}
	case <-time.After(late):
		t.Fatalf("%s: does not say %q", a.name, line)
	}
}

// socket takes hold of the socket that is connected to a port.
func (a *app) socket(t *testing.T, port int) int {
	t.Helper()
	pidfd, err := unix.PidfdOpen(a.pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pidfd)
	dir := fmt.Sprintf("/proc/%d/fd", a.pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if target, _ := os.Readlink(filepath.Join(dir, e.Name())); !strings.HasPrefix(target, "socket:") {
			continue
		}
		n, _ := strconv.Atoi(e.Name())
		fd, err := unix.PidfdGetfd(pidfd, n, 0)
		if err != nil {
			t.Fatal(err)
		}
		if peerPort(fd) == port {
			t.Cleanup(func() { _ = unix.Close(fd) })
			return fd
		}
		_ = unix.Close(fd)
	}
	t.Fatalf("%s: no socket of process %d is connected to port %d", a.name, a.pid, port)
	return -1
}

// peerPort is the port of a socket's peer, 0 for none.
func peerPort(fd int) int {
	switch peer, _ := unix.Getpeername(fd); peer := peer.(type) {
	case *unix.SockaddrInet4:
		return peer.Port
	case *unix.SockaddrInet6:
		return peer.Port
	}
	return 0
}

func (a *app) options(t *testing.T) conn.Options {
	t.Helper()
	o, err := optionsOf(a.fd)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func (a *app) info(t *testing.T) *unix.TCPInfo {
	t.Helper()
	info, err := unix.GetsockoptTCPInfo(a.fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		t.Fatal(err)
	}
	return info
}
