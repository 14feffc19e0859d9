// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"testing"

	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/netns"
)

// holderForms loads the walks in the form that this kernel has no better than,
// and in the older one.
func holderForms(t *testing.T) map[string]*Programs {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" || os.Getenv("SOCKHEALTH_MUST_RUN") == "1" {
			t.Fatal("needs root to load programs")
		}
		t.Skip("needs root to load programs")
	}
	if err := rlimit.RemoveMemlock(); err != nil { // Load does
		t.Fatal(err)
	}
	forms := map[string]*Programs{"best": new(Programs), "older": new(Programs)}
	types := new(Types)
	for name, load := range map[string]func() (*holdersObjects, error){
		"best": (&Programs{types: types}).loadHolderWalks,
		"older": func() (*holdersObjects, error) {
			older := new(holdersObjects)
			return older, loadHoldersForm(older, false, types)
		},
	} {
		if _, err := forms[name].holders.get(load); err != nil {
			t.Fatal(err) // every kernel from the floor on has it
		}
	}
	t.Cleanup(func() {
		for _, p := range forms {
			if err := p.holders.close(); err != nil {
				t.Error(err)
			}
		}
	})
	return forms
}

// holder is what the walks tell.
type holder struct {
	tid, fd int
	inode   uint32
}

// hold starts a process that holds files from descriptor 3 on, and works in the
// calling thread's namespace.
func hold(t *testing.T, files ...*os.File) (pid int) {
	t.Helper()
	cmd := exec.Command("cat")
	cmd.ExtraFiles = files
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	return cmd.Process.Pid
}

// inside makes a namespace, and calls fn in it.
func inside(t *testing.T, fn func() error) uint32 {
	t.Helper()
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	if err := ns.Do(fn); err != nil {
		t.Fatal(err)
	}
	return ns.Inode()
}

// socketIn opens a socket in a namespace that nothing else keeps.
func socketIn(t *testing.T) (*os.File, uint32) {
	t.Helper()
	fd := -1
	inode := inside(t, func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		return err
	})
	f := os.NewFile(uintptr(fd), "socket")
	t.Cleanup(func() { _ = f.Close() })
	return f, inode
}

func TestHolders(t *testing.T) {
	for name, p := range holderForms(t) {
		t.Run(name, func(t *testing.T) {
			socket, inode := socketIn(t)
			all := func(known ...uint32) (rows []holder) {
				t.Helper()
				err := p.Holders(known, func(tid, fd int, inode uint32) { rows = append(rows, holder{tid, fd, inode}) })
				if err != nil {
					t.Fatal(err)
				}
				return slices.DeleteFunc(rows, func(h holder) bool { return h.inode != inode })
			}
			if rows := all(); len(rows) > 0 {
				t.Errorf("%v, but this process alone has it", rows)
			}
			first := holder{hold(t, socket, socket), 3, inode}
			for range 2 { // one walk leaves nothing to the next
				if rows := all(); !slices.Equal(rows, []holder{first}) {
					t.Errorf("%v, want %v", rows, first)
				}
			}
			for range 10 {
				hold(t, socket)
			}
			if rows := all(); len(rows) != int(holdersShHoldersLimitsSH_HOLDERS_ROWS) {
				t.Errorf("%d rows: %v", len(rows), rows)
			}
			if rows := all(inode, 1); len(rows) > 0 {
				t.Errorf("%v, but it is known", rows)
			}
			if rows := all(1); len(rows) == 0 {
				t.Error("no rows, but another one is known")
			}
		})
	}
}

// A descriptor of a namespace counts by its own number, unless it is marked as
// one that watches; O_PATH opens neither namespaces nor sockets.
func TestHoldersOfDescriptors(t *testing.T) {
	for name, p := range holderForms(t) {
		t.Run(name, func(t *testing.T) {
			open := func(flags int) (f *os.File, inode uint32) {
				inode = inside(t, func() error {
					fd, err := unix.Open("/proc/thread-self/ns/net", flags|unix.O_CLOEXEC, 0)
					f = os.NewFile(uintptr(fd), "netns")
					return err
				})
				t.Cleanup(func() { _ = f.Close() })
				return f, inode
			}
			plain, held := open(unix.O_RDONLY)
			marked, watched := open(unix.O_RDONLY | unix.O_APPEND)
			closed, path := socketIn(t)
			fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(int(closed.Fd())), unix.O_PATH|unix.O_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			husk := os.NewFile(uintptr(fd), "path")
			defer husk.Close()
			pid := hold(t, plain, marked, husk)
			told := make(map[uint32]holder)
			if err := p.Holders(nil, func(tid, fd int, inode uint32) { told[inode] = holder{tid, fd, inode} }); err != nil {
				t.Fatal(err)
			}
			if want := (holder{pid, 3, held}); told[held] != want {
				t.Errorf("%v, want %v", told[held], want)
			}
			for _, inode := range []uint32{watched, path} {
				if h, ok := told[inode]; ok {
					t.Errorf("%v is told", h)
				}
			}
		})
	}
}

func TestResidents(t *testing.T) {
	for name, p := range holderForms(t) {
		t.Run(name, func(t *testing.T) {
			var pids []int
			inode := inside(t, func() error {
				for range 3 {
					pids = append(pids, hold(t))
				}
				return nil
			})
			var got []int
			residents := func(known ...uint32) {
				t.Helper()
				got = nil
				err := p.Residents(known, func(tid int, in uint32) {
					if in == inode {
						got = append(got, tid)
					}
				})
				if err != nil {
					t.Fatal(err)
				}
				slices.Sort(got)
			}
			slices.Sort(pids)
			if residents(); !slices.Equal(got, pids) {
				t.Errorf("%v, want %v", got, pids)
			}
			if residents(inode); len(got) > 0 {
				t.Errorf("%v, but it is known", got)
			}
			// This process's own threads are left out.
			mine := inside(t, func() error {
				return p.Residents(nil, func(tid int, in uint32) { got = append(got, int(in)) })
			})
			if slices.Contains(got, int(mine)) {
				t.Errorf("%d is told, where this process alone works", mine)
			}
		})
	}
}

func TestHoldersWhereTheyDidNotLoad(t *testing.T) {
	p := new(Programs)
	p.holders.get(func() (*holdersObjects, error) { return nil, ErrUnsupported })
	if err := p.Holders(nil, nil); !errors.Is(err, ErrUnsupported) {
		t.Error(err)
	}
	if err := p.Residents(nil, nil); !errors.Is(err, ErrUnsupported) {
		t.Error(err)
	}
	p = &Programs{closed: true}
	if err := p.Holders(nil, nil); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}
