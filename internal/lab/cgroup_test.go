// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
)

// whereIs returns the cgroup v2 of a process as /proc tells it.
func whereIs(t *testing.T, pid string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("/proc", pid, "cgroup"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if path, ok := strings.CutPrefix(line, "0::"); ok {
			return strings.TrimSpace(path)
		}
	}
	t.Fatalf("no cgroup v2 in %q", b)
	return ""
}

func TestEnterAndLeave(t *testing.T) {
	labtest.NoLeak(t)
	c := labtest.Cgroup(t)
	home := whereIs(t, "self")
	if err := c.Enter(); err != nil {
		t.Fatal(err)
	}
	if got := whereIs(t, "self"); filepath.Base(got) != filepath.Base(c.Path) {
		t.Errorf("after Enter in %s, want %s", got, c.Path)
	}
	if err := c.Leave(); err != nil {
		t.Fatal(err)
	}
	if got := whereIs(t, "self"); got != home {
		t.Errorf("after Leave in %s, want %s", got, home)
	}
}

func TestCloseWithSelfAndChildInside(t *testing.T) {
	labtest.NoLeak(t)
	home := whereIs(t, "self")
	c := labtest.Cgroup(t)
	if err := c.Enter(); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(c.Path, "below"), 0o755); err != nil {
		t.Fatal(err)
	}
	child := exec.Command("cat")
	child.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: c.FD()}
	in, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Leave(); err != nil { // the child is put there all the same
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	if got := whereIs(t, fmt.Sprint(child.Process.Pid)); filepath.Base(got) != filepath.Base(c.Path) {
		t.Errorf("the child is in %s, want %s", got, c.Path)
	}
	if err := c.Enter(); err != nil {
		t.Fatal(err)
	}
	closed := make(chan error)
	go func() { closed <- c.Close() }()
	labtest.Eventually(t, 10*time.Second, func() bool { return whereIs(t, "self") == home }, "Close takes the process home")
	select {
	case err := <-closed:
		t.Fatalf("Close did not wait for the child: %v", err)
	default:
	}
	_ = in.Close()
	if err := child.Wait(); err != nil {
		t.Error(err)
	}
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(c.Path); !os.IsNotExist(err) {
		t.Errorf("the cgroup is still there: %v", err)
	}
	if got := whereIs(t, "self"); got != home {
		t.Errorf("after Close in %s, want %s", got, home)
	}
}

func TestLeftoversOfTheDeadAreSwept(t *testing.T) {
	living := labtest.Cgroup(t)
	dead := exec.Command("true")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	mount := filepath.Dir(living.Path)
	left := func(name string, pid int) string {
		path := filepath.Join(mount, fmt.Sprintf("sockhealth-%s-%d-0", name, pid))
		if err := os.Mkdir(path, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.Remove(path) })
		return path
	}
	leftover := left("sweeptest", dead.Process.Pid)
	if err := os.Mkdir(filepath.Join(leftover, "below"), 0o755); err != nil {
		t.Fatal(err)
	}
	alive := left("sweeptest", os.Getppid())
	foreign := left("sweeptest-longer", dead.Process.Pid)

	c, err := lab.NewCgroup("sweeptest")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{leftover: false, alive: true, foreign: true, living.Path: true} {
		if _, err := os.Stat(path); (err == nil) != want {
			t.Errorf("%s is there: %v, want %v", path, err == nil, want)
		}
	}
}
