// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Do runs fn inside the namespace, on the calling goroutine, and returns fn's
// error as it is. Sockets and namespace descriptors made by fn stay in the
// namespace for good, and a process started by fn is born in it. It costs about
// as much as three opens of a file, or one where the calling thread is in the
// namespace already.
//
// The goroutine keeps its thread to itself meanwhile. fn must not start
// goroutines that expect the namespace, nor use what does so by itself:
// net.Dialer races IPv4 against IPv6 in goroutines, and the resolver does too;
// literal addresses are safe. fn may call Do of another namespace.
//
// Where the way back is barred, because fn gave up CAP_SYS_ADMIN, Do panics
// and the thread ends with the goroutine: whatever ran on it afterwards would
// act in a foreign namespace without knowing.
func (ns *NS) Do(fn func() error) error {
	runtime.LockOSThread()
	home, err := thread()
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter %s: %w", ns, err)
	}
	defer unix.Close(home.fd)
	if home.inode == ns.inode {
		defer runtime.UnlockOSThread()
		return fn()
	}
	if err := ns.control(setns); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter %s: %w", ns, edge(err))
	}
	defer home.back()
	return fn()
}

// place is where a thread came from.
type place struct {
	fd    int
	inode uint32
}

// thread returns the calling thread's place; the caller closes the descriptor.
func thread() (place, error) {
	fd, err := unix.Open(threadSelf, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return place{}, &os.PathError{Op: "open", Path: threadSelf, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		_ = unix.Close(fd)
		return place{}, &os.PathError{Op: "stat", Path: threadSelf, Err: err}
	}
	return place{fd: fd, inode: uint32(st.Ino)}, nil
}

// back brings the locked thread home and unlocks it, or panics.
func (p place) back() {
	if err := setns(p.fd); err != nil {
		panic(fmt.Sprintf("return to network namespace %d: %v", p.inode, err))
	}
	runtime.UnlockOSThread()
}

func setns(fd int) error { return unix.Setns(fd, unix.CLONE_NEWNET) }
