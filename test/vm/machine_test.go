// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/test/vm/guest"
)

// bed runs a shell command under the kernel that the environment names.
func bed(t *testing.T, script string) (m *machine, out *bytes.Buffer) {
	t.Helper()
	name := os.Getenv("SOCKHEALTH_VM_KERNEL")
	if name == "" {
		t.Skip("needs SOCKHEALTH_VM_KERNEL, the name of a fetched kernel, as `make vm-check` sets it")
	}
	ks, err := find([]string{name})
	if err != nil {
		t.Fatal(err)
	}
	in, err := ks[0].open(cacheDefault())
	if err != nil {
		t.Fatal(err)
	}
	f := &folders{cache: cacheDefault()}
	if err := f.open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.close(); err != nil {
			t.Error(err)
		}
	})
	out = new(bytes.Buffer)
	m = &machine{
		kernel: in, tmp: f.run, init: os.Getenv("SOCKHEALTH_VM_INIT"), timeout: 2 * time.Minute, stdout: out, stderr: out,
	}
	m.runs(script)
	return m, out
}

// runs makes shell commands what the machine runs.
func (m *machine) runs(scripts ...string) {
	m.programs = nil
	for _, s := range scripts {
		m.programs = append(m.programs, program{path: "/bin/busybox", args: []string{"sh", "-c", s}, dir: "/"})
	}
}

// run runs the machine and checks that nothing is left of it.
func run(t *testing.T, ctx context.Context, m *machine) (int, error) {
	t.Helper()
	status, err := m.run(ctx)
	left, readErr := os.ReadDir(m.tmp)
	if readErr != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, readErr)
	}
	return status, err
}

// A guest has what tests need, and its output comes through as it is.
func TestGuest(t *testing.T) {
	m, out := bed(t, `set -e
echo out; echo err >&2
[ "$(id -u)" = 0 ]
grep -q "cgroup2 /sys/fs/cgroup " /proc/mounts
grep -q "bpf /sys/fs/bpf " /proc/mounts
[ -s /sys/kernel/btf/vmlinux ]
ip link add type veth
ip addr show lo | grep -q UP
[ "$GREETING" = "hello there" ]
exit 3`)
	m.env = []string{"GREETING=hello there"}
	status, err := run(t, t.Context(), m)
	if status != 3 || err != nil || out.String() != "out\nerr\n" {
		t.Errorf("status %d, %v, output %q", status, err, out)
	}
}

// Each program runs, and the first that fails says how it went.
func TestPrograms(t *testing.T) {
	m, out := bed(t, "")
	m.runs("echo one", "echo two; exit 2", "echo three; exit 3", "echo four")
	if status, err := run(t, t.Context(), m); status != 2 || err != nil || out.String() != "one\ntwo\nthree\nfour\n" {
		t.Errorf("status %d, %v, output %q", status, err, out)
	}
}

// Programs run in the folder they ran in on the host, wherever it is.
func TestFolders(t *testing.T) {
	m, out := bed(t, "")
	const script = `pwd; [ "$(stat -c %a /tmp)" = 1777 ]`
	m.runs(script, script)
	m.programs[0].dir, m.programs[1].dir = "/tmp/sockhealth/tree", "/run/sockhealth/tree"
	if status, err := run(t, t.Context(), m); status != 0 || err != nil || out.String() != "/tmp/sockhealth/tree\n/run/sockhealth/tree\n" {
		t.Errorf("status %d, %v, output %q", status, err, out)
	}
}

// A module that was taken away is not found, and any other is.
func TestWithout(t *testing.T) {
	m, out := bed(t, `modprobe dummy && ! modprobe veth`)
	m.without = []string{"veth"}
	if status, err := run(t, t.Context(), m); status != 0 || err != nil {
		t.Errorf("status %d, %v, output %q", status, err, out)
	}
	m.without = []string{"no_such_module"}
	if status, err := run(t, t.Context(), m); status != guest.StatusFailed || err == nil || !strings.Contains(err.Error(), "no_such_module") {
		t.Errorf("status %d, %v", status, err)
	}
}

func TestCrash(t *testing.T) {
	m, _ := bed(t, `echo c >/proc/sysrq-trigger; sleep 60`)
	status, err := run(t, t.Context(), m)
	if status != guest.StatusFailed || err == nil || !strings.Contains(err.Error(), "panic") {
		t.Errorf("status %d, %v", status, err)
	}
}

// What a machine is given to write to is as it was when the machine was ended.
func TestTimeout(t *testing.T) {
	m, _ := bed(t, `trap "" QUIT; echo on; sleep 600`)
	m.timeout = 20 * time.Second
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	m.stdout, m.stderr = out, out
	status, err := run(t, t.Context(), m)
	if status != guest.StatusTimeout || err == nil {
		t.Errorf("status %d, %v", status, err)
	}
	if flags := statusFlags(t, out); flags&unix.O_NONBLOCK != 0 {
		t.Errorf("the output was made non-blocking: flags %#x", flags)
	}
}

// A program that would not end in time is asked where it is, and no other is started.
func TestLate(t *testing.T) {
	m, out := bed(t, "")
	m.runs("trap 'echo here; exit 3' QUIT; while :; do sleep 1; done", "echo another")
	m.timeout = 30 * time.Second
	status, err := run(t, t.Context(), m)
	if status != guest.StatusTimeout || err == nil || !strings.Contains(err.Error(), "/vm/busybox did not end in time") {
		t.Errorf("status %d, %v", status, err)
	}
	if out.String() != "here\n" {
		t.Errorf("output %q", out)
	}
}

// statusFlags returns a file's flags (F_GETFL), as they are.
func statusFlags(t *testing.T, f *os.File) (flags int) {
	t.Helper()
	conn, err := f.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var getErr error
	err = conn.Control(func(fd uintptr) { flags, getErr = unix.FcntlInt(fd, unix.F_GETFL, 0) })
	if err := errors.Join(err, getErr); err != nil {
		t.Fatal(err)
	}
	return flags
}

// An interruption ends the machine, and leaves nothing of it.
func TestInterrupt(t *testing.T) {
	m, out := bed(t, `echo ready; sleep 600`)
	ctx, cancel := context.WithCancelCause(t.Context())
	interrupted := errors.New("interrupted")
	m.stdout = writer(func(b []byte) (int, error) {
		cancel(interrupted)
		return out.Write(b)
	})
	if status, err := run(t, ctx, m); status == 0 || !errors.Is(err, interrupted) {
		t.Errorf("status %d, %v", status, err)
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(b []byte) (int, error) { return w(b) }
