// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/netns"
)

// holders tells descriptors of this process.
type holders []row

func (h holders) Residents([]uint32, func(int, uint32)) error { return nil }

func (h holders) Holders(_ []uint32, fn func(int, int, uint32)) error {
	for _, r := range h {
		fn(r.tid, r.fd, r.inode)
	}
	return nil
}

// A descriptor that was told and is another file's by now says nothing of the
// namespace, which is found by the next that is told; one of another kind is opened
// once and no more.
func TestDescriptorOfAnotherFile(t *testing.T) {
	ns := labtest.Netns(t)
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	opened := map[string]int{"a pipe": pipe[0]}
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	for name, path := range map[string]string{
		"a plain file": "/proc/self/exe", "a device": os.DevNull, "a namespace of another kind": "/proc/self/ns/uts",
	} {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		opened[name] = fd
	}
	for name, fd := range opened {
		s := newScan(nil, "/proc")
		s.walker = holders{{os.Getpid(), fd, ns.Inode()}, {os.Getpid(), ns.FD(), ns.Inode()}}
		if err := s.holders(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if !s.seen[ns.Inode()] || len(s.other) != 0 || len(s.denials()) != 0 {
			t.Errorf("%s: seen %v, of another kind %v, denied %v", name, s.seen, s.other, s.denials())
		}
		for _, found := range s.found {
			_ = found.Close()
		}
	}
	var uts unix.Stat_t
	if err := unix.Stat("/proc/self/ns/uts", &uts); err != nil {
		t.Fatal(err)
	}
	s := newScan(nil, "/proc")
	s.walker = holders{{os.Getpid(), opened["a namespace of another kind"], uint32(uts.Ino)}}
	if err := s.holders(); err != nil || !s.other[uint32(uts.Ino)] || len(s.missing) != 0 {
		t.Errorf("of another kind %v, missing %v, %v", s.other, s.missing, err)
	}
}

// What is refused counts where the thread is still there. The directory that stands
// for /proc refuses everything to a thread without capabilities, and access(2) gives
// them back, since the thread's real user is root.
func TestRefusedAndEnded(t *testing.T) {
	labtest.Root(t)
	proc := t.TempDir()
	if err := os.Mkdir(filepath.Join(proc, "1"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(proc, 0); err != nil {
		t.Fatal(err)
	}
	s := newScan(nil, proc)
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends without its capabilities
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var data [2]unix.CapUserData
		if err := unix.Capget(&header, &data[0]); err != nil {
			t.Error(err)
			return
		}
		data[0].Effective, data[1].Effective = 0, 0
		if err := unix.Capset(&header, &data[0]); err != nil {
			t.Error(err)
			return
		}
		for name, open := range map[string]func(tid int) (*netns.NS, error){
			"resident": s.resident,
			"file":     func(tid int) (*netns.NS, error) { return s.file(tid, 3, 77) },
		} {
			if _, err := open(1); !refused(err) {
				t.Errorf("%s: %v, want it refused", name, err)
			}
			if _, err := open(2); refused(err) || !gone(err) {
				t.Errorf("%s: %v of a thread that has ended", name, err)
			}
		}
	}()
	<-done
	if err := os.Chmod(proc, 0o700); err != nil {
		t.Error(err)
	}
}
