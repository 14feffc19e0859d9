// SPDX-License-Identifier: Apache-2.0

package registry_test

import (
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/netns"
)

// subject is a namespace that the test lets go of, to see whether it is freed.
type subject struct {
	*netns.NS
	outer *netns.NS // has one end of a pair of devices; the other is inside
	name  string    // where named put it
}

const device = "subject"

func newSubject(t testing.TB) *subject {
	t.Helper()
	s := &subject{NS: labtest.Netns(t), outer: labtest.Netns(t)}
	veth := netlink.NewVeth(netlink.NewLinkAttrs())
	veth.Name, veth.PeerName, veth.PeerNamespace = device, "inside", netlink.NsFd(s.FD())
	if err := s.outer.Do(func() error { return netlink.LinkAdd(veth) }); err != nil {
		t.Fatal(err)
	}
	return s
}

// isFreed: a device vanishes with its peer, which is freed with its namespace.
func (s *subject) isFreed() bool {
	return s.outer.Do(func() error {
		_, err := netlink.LinkByName(device)
		return err
	}) != nil
}

func (s *subject) file() *os.File {
	fd, err := unix.FcntlInt(uintptr(s.FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		panic(err)
	}
	return os.NewFile(uintptr(fd), "netns")
}

// socket opens one inside.
func (s *subject) socket(t testing.TB, domain, kind int) *os.File {
	t.Helper()
	fd := -1
	err := s.Do(func() (err error) {
		fd, err = unix.Socket(domain, kind|unix.SOCK_CLOEXEC, 0)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fd), "socket")
}

// with gives a file away to start and closes ours.
func with(f *os.File, start func(...*os.File) func()) func() {
	defer f.Close()
	return start(f)
}

// keepers are what keeps a namespace alive, each alone.
var keepers = map[string]func(testing.TB, *subject) (end func()){
	"a process": func(t testing.TB, s *subject) (end func()) {
		if err := s.Do(func() error { end = sleeper(t); return nil }); err != nil {
			t.Fatal(err)
		}
		return end
	},
	"a thread": func(t testing.TB, s *subject) func() {
		return with(s.file(), func(f ...*os.File) func() { return child(t, "thread", nil, f...) })
	},
	"a TCP socket": func(t testing.TB, s *subject) func() {
		return with(s.socket(t, unix.AF_INET6, unix.SOCK_STREAM), func(f ...*os.File) func() { return sleeper(t, f...) })
	},
	"a netlink socket": func(t testing.TB, s *subject) func() {
		return with(s.socket(t, unix.AF_NETLINK, unix.SOCK_RAW), func(f ...*os.File) func() { return sleeper(t, f...) })
	},
	"a descriptor": func(t testing.TB, s *subject) func() {
		return with(s.file(), func(f ...*os.File) func() { return sleeper(t, f...) })
	},
	"a name": named,
	"a process that hides its socket": func(t testing.TB, s *subject) func() {
		if running, _, err := kernel.Running(); err != nil || running.Before(kernel.Release{Major: 6, Minor: 9}) {
			t.Skip("needs PIDFD_THREAD (Linux 6.9)")
		}
		return with(s.file(), func(f ...*os.File) func() { return child(t, "table", nil, f...) })
	},
}

// named mounts the namespace in a mount namespace of the calling thread's own,
// which the test must have locked for good.
func named(t testing.TB, s *subject) func() {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "with a space")
	s.name = name
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Do(func() error { return unix.Mount("/proc/thread-self/ns/net", name, "", unix.MS_BIND, "") }); err != nil {
		t.Fatal(err)
	}
	return sync.OnceFunc(func() {
		// Not possible while anybody has a file open by way of it.
		if err := unix.Unmount(name, 0); err != nil {
			t.Error(err)
		}
	})
}

// onOwnThread runs a test on a thread that is thrown away.
func onOwnThread(fn func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		fn()
	}()
	<-done
}
