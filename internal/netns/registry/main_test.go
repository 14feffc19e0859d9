// SPDX-License-Identifier: Apache-2.0

package registry_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/netns/registry"
)

// What the test binary does as another process. Its standard input ends it,
// descriptor 3 is a network namespace.
var children = map[string]func() error{
	"thread": childThread,
	"table":  childTable,
	"agent":  childAgent,
	"many":   childMany,
	"pids":   childPIDs,
}

// ready is the line by which a child says that it is.
const ready = "ready"

func TestMain(m *testing.M) {
	runtime.LockOSThread() // the main thread stays where it is
	if len(os.Args) > 1 && children[os.Args[1]] != nil {
		if err := children[os.Args[1]](); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(ready)
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// child starts this binary as another process, with files from descriptor 3 on,
// and waits until it is ready.
func child(t testing.TB, what string, attr *syscall.SysProcAttr, files ...*os.File) (end func()) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, what)
	cmd.SysProcAttr, cmd.ExtraFiles, cmd.Stderr = attr, files, os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	end = started(t, cmd)
	if line, err := bufio.NewReader(out).ReadString('\n'); line != ready+"\n" {
		t.Fatalf("%s: %q, %v", what, line, err)
	}
	return end
}

// sleeper starts a process that does nothing but hold files.
func sleeper(t testing.TB, files ...*os.File) (end func()) {
	t.Helper()
	cmd := exec.Command("cat")
	cmd.ExtraFiles = files
	return started(t, cmd)
}

// sleeperPID starts one that ends with the test.
func sleeperPID(t testing.TB) int {
	t.Helper()
	cmd := exec.Command("cat")
	started(t, cmd)
	return cmd.Process.Pid
}

// started starts a process whose standard input ends it.
func started(t testing.TB, cmd *exec.Cmd) (end func()) {
	t.Helper()
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	over := false
	end = func() {
		if !over {
			over = true
			_ = in.Close()
			_ = cmd.Wait()
		}
	}
	t.Cleanup(end)
	return end
}

// onThread runs fn on a thread that ends with fn or, where fn succeeds, stays.
func onThread(fn func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		done <- fn()
		select {}
	}()
	return <-done
}

// childThread has a thread work in the namespace, and no descriptor of it.
func childThread() error {
	if err := onThread(func() error { return unix.Setns(3, unix.CLONE_NEWNET) }); err != nil {
		return err
	}
	return unix.Close(3)
}

// childTable has a socket of the namespace in the descriptor table of one thread.
func childTable() error {
	err := onThread(func() error {
		home, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		if err := unix.Unshare(unix.CLONE_FILES); err != nil {
			return err
		}
		if err := unix.Setns(3, unix.CLONE_NEWNET); err != nil {
			return err
		}
		if _, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0); err != nil {
			return err
		}
		if err := unix.Setns(home, unix.CLONE_NEWNET); err != nil {
			return err
		}
		return unix.Close(3)
	})
	if err != nil {
		return err
	}
	return unix.Close(3)
}

// childAgent is another agent, which has found the namespace.
func childAgent() error {
	ns, err := netns.FromFD(3)
	if err != nil {
		return err
	}
	r, err := registry.New(nil)
	if err != nil {
		return err
	}
	_ = r.Refresh() // not all may be in sight
	if _, ok := r.ByInode(ns.Inode()); !ok {
		return fmt.Errorf("%s not found", ns)
	}
	return ns.Close()
}

// childMany holds namespaces of other kinds, more than one read of a walk has room
// for. They are of two, since a machine of 1 GiB may not have as many of one
// (user.max_uts_namespaces).
func childMany() error {
	return onThread(func() error {
		for range many / 2 {
			if err := unix.Unshare(unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP); err != nil {
				return err
			}
			for _, kind := range []string{"uts", "cgroup"} {
				if _, err := unix.Open("/proc/thread-self/ns/"+kind, unix.O_RDONLY, 0); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

const many = 3500
