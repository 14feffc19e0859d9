// SPDX-License-Identifier: Apache-2.0

package paths_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/netns/paths"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// apart runs a test in a mount namespace of its own.
func apart(t *testing.T, fn func()) {
	labtest.Root(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and the thread ends with this
		err := unix.Unshare(unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err != nil {
			t.Error(err)
			return
		}
		fn()
	}()
	<-done
}

// give makes a path the name of a namespace.
func give(t *testing.T, name string, ns *netns.NS) {
	t.Helper()
	err := os.WriteFile(name, nil, 0o600)
	if err == nil {
		err = ns.Do(func() error { return unix.Mount("/proc/thread-self/ns/net", name, "", unix.MS_BIND, "") })
	}
	if err != nil {
		t.Error(err)
	}
}

// take takes the name away, which the kernel refuses while anybody has it open.
func take(t *testing.T, name string) {
	t.Helper()
	if err := errors.Join(unix.Unmount(name, 0), os.Remove(name)); err != nil {
		t.Error(err)
	}
}

// want checks which namespaces are held.
func want(t *testing.T, when string, p *paths.Paths, wants ...*netns.NS) {
	t.Helper()
	var have, expected []uint32
	for _, ns := range p.All() {
		have = append(have, ns.Inode())
		_ = ns.Close()
	}
	for _, ns := range wants {
		expected = append(expected, ns.Inode())
	}
	slices.Sort(have)
	slices.Sort(expected)
	if !slices.Equal(have, expected) {
		t.Errorf("%s: holds %v, want %v", when, have, expected)
	}
}

// A name that is given to another namespace leads there from the next look on, and one
// that leads nowhere keeps what it led to, and says so.
func TestNameGivenAnew(t *testing.T) {
	labtest.NoLeak(t)
	first, second, other := labtest.Netns(t), labtest.Netns(t), labtest.Netns(t)
	apart(t, func() {
		name, same := filepath.Join(t.TempDir(), "app"), filepath.Join(t.TempDir(), "same")
		give(t, name, first)
		give(t, same, other)
		p, err := paths.Open([]string{name, same, same})
		if err != nil {
			t.Error(err)
			return
		}
		defer p.Close()
		var told []string
		p.Tell(func(old, now uint32) { told = append(told, fmt.Sprint(old, " ", now)) })
		p.Look()
		want(t, "at first", p, first, other)

		take(t, name)
		p.Look()
		want(t, "without the name", p, first, other)
		if err := p.Err(); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("without the name: %v", err)
		}
		if err := os.WriteFile(name, nil, 0o600); err != nil { // as ip netns add does before it mounts
			t.Error(err)
		}
		p.Look()
		if err := p.Err(); !errors.Is(err, netns.ErrNotNetns) {
			t.Errorf("with a file of that name: %v", err)
		}

		give(t, name, second)
		if !p.Covers(second.Inode()) || p.Err() != nil {
			t.Errorf("given anew: %v", p.Err())
		}
		want(t, "given anew", p, second, other)
		if p.Covers(first.Inode()) {
			t.Error("the old one is held")
		}
		if change := fmt.Sprint(first.Inode(), " ", second.Inode()); !slices.Equal(told, []string{change}) {
			t.Errorf("told %v, want %s", told, change)
		}
		take(t, name) // nobody has it open
	})
}

// What a path of /proc led to is held for good: its number is another's later.
func TestProcessGone(t *testing.T) {
	labtest.NoLeak(t)
	first, second := labtest.Netns(t), labtest.Netns(t)
	fd, err := unix.Dup(first.FD())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	name := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(name, link); err != nil {
		t.Fatal(err)
	}
	p, err := paths.Open([]string{name, link})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := unix.Dup3(second.FD(), fd, unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	if p.Covers(second.Inode()) || p.Err() != nil {
		t.Errorf("follows a descriptor: %v", p.Err())
	}
	want(t, "another's descriptor", p, first)
}

func TestOpenRefuses(t *testing.T) {
	labtest.NoLeak(t)
	labtest.Root(t)
	nothing := filepath.Join(t.TempDir(), "nothing")
	if _, err := paths.Open([]string{"/proc/thread-self/ns/net", nothing}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no such path: %v", err)
	}
}
