// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

func TestDoGoesThereAndComesBack(t *testing.T) {
	noLeak(t)
	home := hereInode(t)
	ns, other := mustNew(t), mustNew(t)
	boom := errors.New("boom")
	err := ns.Do(func() error {
		if got := hereInode(t); got != ns.Inode() {
			t.Errorf("inside: %d, want %d", got, ns.Inode())
		}
		err := other.Do(func() error { // nested
			if got := hereInode(t); got != other.Inode() {
				t.Errorf("nested: %d, want %d", got, other.Inode())
			}
			return boom
		})
		if got := hereInode(t); got != ns.Inode() {
			t.Errorf("after the nested call: %d, want %d", got, ns.Inode())
		}
		return err
	})
	if err != boom {
		t.Errorf("Do = %v, want fn's own error", err)
	}
	if got := hereInode(t); got != home {
		t.Errorf("afterwards: %d, want %d", got, home)
	}
}

func TestDoStaysOnAThreadThatIsThereAlready(t *testing.T) {
	noLeak(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	here, err := Current()
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	want := unix.Gettid()
	_ = here.Do(func() error {
		if got := unix.Gettid(); got != want {
			t.Errorf("ran on thread %d, want the caller's %d", got, want)
		}
		return nil
	})
}

func TestDoAfterClose(t *testing.T) {
	noLeak(t)
	ns := mustNew(t)
	_ = ns.Close()
	ran := false
	err := ns.Do(func() error { ran = true; return nil })
	if !errors.Is(err, os.ErrClosed) || ran {
		t.Errorf("Do = %v (fn ran: %v), want ErrClosed", err, ran)
	}
}

func TestComesBackAfterPanicAndGoexit(t *testing.T) {
	noLeak(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ns, home := mustNew(t), hereInode(t)
	func() {
		defer func() {
			if got := recover(); got != "boom" {
				t.Errorf("recovered %v", got)
			}
		}()
		_ = ns.Do(func() error { panic("boom") })
	}()
	if got := hereInode(t); got != home {
		t.Errorf("after a panic: %d, want %d", got, home)
	}
	after := make(chan uint32)
	go func() {
		defer func() { after <- hereInode(t) }()
		_ = ns.Do(func() error { runtime.Goexit(); return nil })
	}()
	if got := <-after; got != home {
		t.Errorf("after Goexit: %d, want %d", got, home)
	}
}

// A thread that cannot go home is never given to another goroutine.
func TestBarredWayBackCostsTheThread(t *testing.T) {
	noLeak(t)
	ns := mustNew(t)
	home := hereInode(t)
	done := make(chan any)
	go func() {
		defer func() { done <- recover() }()
		_ = ns.Do(func() error { return drop(unix.CAP_SYS_ADMIN) })
	}()
	if got := <-done; got == nil {
		t.Fatal("Do came back without a panic")
	}
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			runtime.LockOSThread() // keeps its thread: 50 goroutines, 50 threads
			defer runtime.UnlockOSThread()
			if got := hereInode(t); got != home {
				t.Errorf("a goroutine runs in %d, want %d", got, home)
			}
			if err := ns.Do(func() error { return nil }); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// drop takes a capability from the calling thread alone.
func drop(capability int) error {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return err
	}
	data[capability/32].Effective &^= 1 << (capability % 32)
	data[capability/32].Permitted &^= 1 << (capability % 32)
	return unix.Capset(&hdr, &data[0])
}

func TestDoFromManyGoroutines(t *testing.T) {
	noLeak(t)
	spaces := []*NS{mustNew(t), mustNew(t), mustNew(t)}
	home := hereInode(t)
	var wg sync.WaitGroup
	for i := range 24 {
		ns := spaces[i%len(spaces)]
		wg.Go(func() {
			for range 100 {
				_ = ns.Do(func() error {
					if got := hereInode(t); got != ns.Inode() {
						t.Errorf("inside: %d, want %d", got, ns.Inode())
					}
					return nil
				})
				if got := hereInode(t); got != home {
					t.Errorf("outside: %d, want %d", got, home)
				}
			}
		})
	}
	wg.Wait()
}

func BenchmarkDoHere(b *testing.B) {
	ns, err := Current()
	if err != nil {
		b.Fatal(err)
	}
	defer ns.Close()
	for b.Loop() {
		_ = ns.Do(func() error { return nil })
	}
}

func BenchmarkDoThere(b *testing.B) {
	ns := mustNew(b)
	for b.Loop() {
		if err := ns.Do(func() error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
}
