// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// sleeper starts a process inside ns and ends it with the test.
func sleeper(t *testing.T, ns *NS) int {
	t.Helper()
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := ns.Do(cmd.Start); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	return cmd.Process.Pid
}

// mustList lets pass that some process of the node hides from root, too.
func mustList(t *testing.T, err error) {
	t.Helper()
	if err != nil && !errors.Is(err, ErrPermission) {
		t.Fatal(err)
	}
}

func inodes(t *testing.T, list []*NS) []uint32 {
	t.Helper()
	var all []uint32
	for _, ns := range list {
		all = append(all, ns.Inode())
		if err := ns.Close(); err != nil {
			t.Error(err)
		}
	}
	return all
}

func TestListFindsProcessesOncePerNamespace(t *testing.T) {
	noLeak(t)
	ns, unseen := mustNew(t), mustNew(t)
	sleeper(t, ns)
	sleeper(t, ns)
	list, err := List()
	mustList(t, err)
	got := inodes(t, list)
	if !slices.IsSorted(got) || len(slices.Compact(slices.Clone(got))) != len(got) {
		t.Errorf("List = %v, want each once and in order", got)
	}
	if !slices.Contains(got, ns.Inode()) || !slices.Contains(got, hereInode(t)) {
		t.Errorf("List = %v, want %d and our own %d in it", got, ns.Inode(), hereInode(t))
	}
	if slices.Contains(got, unseen.Inode()) {
		t.Errorf("List = %v has %d, which only a descriptor holds", got, unseen.Inode())
	}
}

// A name is a bind mount; a symbolic link stands in for one here, so that the
// test leaves the node's mounts alone.
func TestListFindsNamedOnes(t *testing.T) {
	noLeak(t)
	ns := mustNew(t)
	dir := t.TempDir()
	if err := os.Symlink("/proc/self/fd/"+strconv.Itoa(ns.FD()), filepath.Join(dir, "named")); err != nil {
		t.Fatal(err)
	}
	// Left over from a namespace that is gone: an ordinary empty file.
	if err := os.WriteFile(filepath.Join(dir, "stale"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	list, err := list(t.TempDir(), filepath.Join(dir, "missing"), dir)
	if err != nil {
		t.Fatal(err)
	}
	got, want := inodes(t, list), []uint32{ns.Inode(), hereInode(t)}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("list = %v, want %v", got, want)
	}
}

func TestListOutlivesProcessesThatExit(t *testing.T) {
	noLeak(t)
	privileged(t)
	baseline := denials(t)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_ = exec.Command("true").Run()
			}
		}
	})
	for deadline := time.Now().Add(300 * time.Millisecond); time.Now().Before(deadline); {
		if got := denials(t); got > baseline {
			t.Fatalf("an exited process counts as hidden: %d, without any %d", got, baseline)
		}
	}
	close(stop)
	wg.Wait()
}

// denials lists, and returns how many processes hid.
func denials(t *testing.T) int {
	t.Helper()
	l := lister{seen: make(map[uint32]bool)}
	err := l.current()
	if err == nil {
		err = l.processes("/proc")
	}
	if err != nil {
		t.Fatal(err)
	}
	inodes(t, l.found)
	return len(l.denied)
}

// What may not be looked at is said, and hides nothing else.
func TestListWithoutPtrace(t *testing.T) {
	noLeak(t)
	privileged(t)
	hidden := mustNew(t)
	asleep := sleeper(t, hidden)
	var err error
	var got []uint32
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // to the end: the thread dies with its lesser capabilities
		if err = drop(unix.CAP_SYS_PTRACE); err != nil {
			return
		}
		var list []*NS
		list, err = List()
		got = inodes(t, list)
	}()
	<-done
	if !errors.Is(err, ErrPermission) || !slices.Contains(got, hereInode(t)) || slices.Contains(got, hidden.Inode()) {
		t.Errorf("List = %v, %v; want our own without %d, beside ErrPermission", got, err, hidden.Inode())
	}
	// Others may hide, too, and come first.
	var denied *DeniedError
	if !errors.As(err, &denied) || denied.Number < 1 || len(denied.Named) != min(denied.Number, deniedNamed) {
		t.Fatalf("%v, want a DeniedError that names the first", err)
	}
	if want := fmt.Sprintf("process %d (cat)", asleep); denied.Number <= deniedNamed && !slices.Contains(denied.Named, want) {
		t.Errorf("%v does not name %s", err, want)
	}
}

// TestDenied: a process is named as it was called when it refused, whoever has its number
// later, and said to be gone where it is.
func TestDenied(t *testing.T) {
	proc := t.TempDir()
	called := func(pid, comm string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(proc, pid), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(proc, pid, "comm"), []byte(comm+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	called("12", "nginx")
	called("14", "redis")
	var refusals Refusals
	for _, path := range []string{proc + "/12/ns/net", "/run/netns/7", proc + "/13/ns/net", proc + "/14/ns/net", "/run/netns/b"} {
		refusals.Add(path)
	}
	alone := []Refusal{Refused(proc + "/14/ns/net")}
	called("12", "sh") // a later one
	if err := os.RemoveAll(filepath.Join(proc, "14")); err != nil {
		t.Fatal(err)
	}
	for want, list := range map[string][]Refusal{
		"process 12 (nginx)": refusals[:1],
		"process 12 (nginx), /run/netns/7, process 13 (hidden)":            refusals[:3],
		"process 12 (nginx), /run/netns/7, process 13 (hidden) and 2 more": refusals,
		"process 14 (redis, gone)":                                         alone,
	} {
		want = "permission denied to look at " + want
		if err := Denied(list); !errors.Is(err, ErrPermission) || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if err := Denied(nil); err != nil {
		t.Errorf("of none: %v", err)
	}
}
