// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	// Keeps the main thread away from a test that loses its thread: Go cannot
	// let that one die.
	runtime.LockOSThread()
	goleak.VerifyTestMain(m)
}

// privileged skips a test without root, or fails where it must run.
func privileged(t testing.TB) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("CI") == "true" || os.Getenv("SOCKHEALTH_MUST_RUN") == "1" {
		t.Fatal("needs root (CAP_SYS_ADMIN) to make network namespaces")
	}
	t.Skip("needs root (CAP_SYS_ADMIN) to make network namespaces")
}

// noLeak fails the test if it ends with other descriptors than it began with.
func noLeak(t *testing.T) {
	t.Helper()
	before := descriptors(t)
	t.Cleanup(func() {
		if after := descriptors(t); !slices.Equal(before, after) {
			t.Errorf("descriptors before %v, after %v", before, after)
		}
	})
}

func descriptors(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	var open []string
	for _, e := range entries {
		target, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name()))
		if err != nil || target == "anon_inode:[eventpoll]" || target == "anon_inode:[eventfd]" {
			continue // the listing's own descriptor is gone; the others are the runtime's
		}
		open = append(open, e.Name()+" "+target)
	}
	return open
}

func mustNew(t testing.TB) *NS {
	t.Helper()
	privileged(t)
	ns, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ns.Close() })
	return ns
}

func hereInode(t testing.TB) uint32 {
	t.Helper()
	ns, err := Current()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	return ns.Inode()
}

func TestCurrentIsTheProcessesOwn(t *testing.T) {
	noLeak(t)
	self, err := Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	if got := hereInode(t); got != self.Inode() || got == 0 {
		t.Errorf("Current = %d, /proc/self = %d", got, self.Inode())
	}
}

func TestRefusesWhatIsNoNetns(t *testing.T) {
	noLeak(t)
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]error{
		"/proc/self/ns/mnt":  ErrNotNetns,
		plain:                ErrNotNetns,
		fifo:                 ErrNotNetns,
		"/dev/null":          ErrNotNetns,
		"/proc/self/ns/none": os.ErrNotExist,
	} {
		ns, err := Open(path)
		if ns != nil || !errors.Is(err, want) {
			t.Errorf("Open(%s) = %v, %v; want %v", path, ns, err, want)
		}
	}
	if ns, err := FromFD(-1); ns != nil || !errors.Is(err, unix.EBADF) {
		t.Errorf("FromFD(-1) = %v, %v", ns, err)
	}
}

func TestCloseIsOnceAndDupIsItsOwn(t *testing.T) {
	noLeak(t)
	ns, err := Current()
	if err != nil {
		t.Fatal(err)
	}
	twin, err := ns.Dup()
	if err != nil {
		t.Fatal(err)
	}
	if err := ns.Close(); err != nil {
		t.Fatal(err)
	}
	if err := ns.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("second Close = %v", err)
	}
	if ns.FD() != -1 {
		t.Errorf("FD after Close = %d", ns.FD())
	}
	if _, err := ns.Dup(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Dup after Close = %v", err)
	}
	flags, err := unix.FcntlInt(uintptr(twin.FD()), unix.F_GETFD, 0)
	if err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("twin: flags %#x, %v; want close-on-exec", flags, err)
	}
	if err := twin.Close(); err != nil {
		t.Error(err)
	}
}

func TestNewIsEmptyWithLoopbackUp(t *testing.T) {
	noLeak(t)
	ns := mustNew(t)
	home := hereInode(t)
	if ns.Inode() == home {
		t.Fatal("the new namespace is the old one")
	}
	var ifs []net.Interface
	err := ns.Do(func() (err error) {
		ifs, err = net.Interfaces()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(ifs) == 0 || ifs[0].Name != "lo" || ifs[0].Flags&net.FlagUp == 0 {
		t.Errorf("interfaces = %+v, want lo up", ifs)
	}
	if got := hereInode(t); got != home {
		t.Errorf("after New the thread is in %d, was in %d", got, home)
	}
}

// The connection's own end is the client's, whoever accepts it.
func TestCallerIsTheClientsNamespace(t *testing.T) {
	noLeak(t)
	client := mustNew(t)
	ln, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	for name, from := range map[string]func(func() error) error{
		"another namespace": client.Do,
		"our own":           func(fn func() error) error { return fn() },
	} {
		want := client.Inode()
		if name == "our own" {
			want = hereInode(t)
		}
		var c net.Conn
		if err := from(func() (err error) {
			c, err = net.DialUnix("unix", nil, ln.Addr().(*net.UnixAddr))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		accepted, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		got, err := Caller(accepted.(*net.UnixConn))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got.Inode() != want {
			t.Errorf("%s: Caller = %d, want %d", name, got.Inode(), want)
		}
		for _, c := range []io.Closer{got, accepted, c} {
			_ = c.Close()
		}
		if ns, err := Caller(accepted.(*net.UnixConn)); err == nil {
			t.Errorf("%s: Caller of a closed connection = %v", name, ns)
		}
	}
}
