// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// userNetns starts a process in a user and a network namespace of its own, both
// made by that user, and returns the network namespace.
func userNetns(t *testing.T, uid int) *NS {
	t.Helper()
	privileged(t)
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET}
	asUser(t, uid, func() { err = cmd.Start() })
	if err != nil {
		_ = in.Close()
		t.Fatalf("start a process in a user namespace: %v", err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	ns, err := Open("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ns.Close() })
	return ns
}

// asUser runs fn on a thread with another effective user.
func asUser(t *testing.T, uid int, fn func()) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // until the thread is itself again, or for good
		err := setEUID(uid)
		if err == nil {
			fn()
			if err = setEUID(0); err == nil {
				runtime.UnlockOSThread()
			}
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// setEUID changes the calling thread alone; syscall.Setresuid changes all.
func setEUID(uid int) error {
	const keep = ^uintptr(0)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(uid), keep); errno != 0 {
		return errno
	}
	return nil
}

func TestOwnerUID(t *testing.T) {
	ours, err := Current()
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	for name, tc := range map[string]struct {
		ns   func() *NS
		want uint32
	}{
		"our own":                          {func() *NS { return ours }, 0},
		"of the initial user namespace":    {func() *NS { return mustNew(t) }, 0},
		"of a user namespace made by 0":    {func() *NS { return userNetns(t, 0) }, 0},
		"of a user namespace made by 4711": {func() *NS { return userNetns(t, 4711) }, 4711},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := tc.ns().OwnerUID()
			if err != nil || got != tc.want {
				t.Errorf("OwnerUID = %d, %v; want %d", got, err, tc.want)
			}
		})
	}
}

func TestOwnerUIDLeavesNothingOpen(t *testing.T) {
	noLeak(t)
	ns, err := Current()
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := ns.OwnerUID(); err != nil {
			t.Error(err)
		}
	}
	_ = ns.Close()
	if _, err := ns.OwnerUID(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("OwnerUID after Close: %v", err)
	}
}
