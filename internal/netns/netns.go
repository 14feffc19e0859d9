// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// The errors that callers tell apart.
var (
	// ErrNotNetns says that a path or descriptor is no network namespace.
	ErrNotNetns = errors.New("not a network namespace")
	// ErrPermission says that a capability is missing; doc.go names it.
	ErrPermission = errors.New("permission denied")
)

// threadSelf is the calling thread's own namespace. /proc/self would be the
// main thread's, which may differ while a goroutine works inside another.
const threadSelf = "/proc/thread-self/ns/net"

// NS is an open handle of one network namespace and keeps it alive until Close.
type NS struct {
	descriptor *descriptor
	inode      uint32
	closed     atomic.Bool
}

// descriptor is what a handle and its duplicates share.
type descriptor struct {
	file    *os.File
	handles atomic.Int32 // the last one closes it
}

// handle makes the first handle of a descriptor.
func handle(fd int, inode uint32) *NS {
	ns := &NS{descriptor: &descriptor{file: os.NewFile(uintptr(fd), "netns")}, inode: inode}
	ns.descriptor.handles.Store(1)
	return ns
}

// Current returns a handle of the calling thread's namespace. Without a locked
// thread that is the process's own.
func Current() (*NS, error) { return Open(threadSelf) }

// Open opens a namespace by its path: /proc/PID/ns/net or a bind mount such as
// /run/netns/NAME. The error wraps ErrNotNetns or ErrPermission where it is
// that, and the errno.
func Open(path string) (*NS, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return nil, fmt.Errorf("open network namespace %q: %w", path, edge(err))
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG { // a FIFO would block the open
		return nil, fmt.Errorf("open network namespace %q: %w", path, ErrNotNetns)
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open network namespace %q: %w", path, edge(err))
	}
	ns, err := FromFD(fd)
	if err != nil {
		return nil, fmt.Errorf("open network namespace %q: %w", path, err)
	}
	return ns, nil
}

// FromFD makes a handle of a descriptor and owns it from then on: it is closed
// by Close, and at once where FromFD fails. The error wraps ErrNotNetns where
// the descriptor is something else.
func FromFD(fd int) (*NS, error) {
	var st unix.Stat_t
	err := isNetns(fd)
	if err == nil {
		err = unix.Fstat(fd, &st)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("take descriptor %d as network namespace: %w", fd, err)
	}
	return handle(fd, uint32(st.Ino)), nil
}

// isNetns returns nil where fd is a network namespace.
func isNetns(fd int) error {
	// The ioctl number means other things on other kinds of files: ask first
	// whether fd is a namespace at all.
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return err
	}
	if fs.Type != unix.NSFS_MAGIC {
		return ErrNotNetns
	}
	kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE)
	if err != nil {
		return err
	}
	if kind != unix.CLONE_NEWNET {
		return ErrNotNetns
	}
	return nil
}

// Inode returns the namespace's inode number, which names it among the
// namespaces alive at one time (kernel-facts S13).
func (ns *NS) Inode() uint32 { return ns.inode }

// FD returns the descriptor, -1 after Close. It stays the handle's own: do not
// close it, and do not use it beyond the handle.
func (ns *NS) FD() int {
	if ns.closed.Load() {
		return -1
	}
	return int(ns.descriptor.file.Fd())
}

// Dup returns a second handle, to be closed on its own. Both share a descriptor,
// which is closed with the last handle of it: duplicates cost next to nothing.
func (ns *NS) Dup() (*NS, error) {
	for n := ns.descriptor.handles.Load(); n > 0 && !ns.closed.Load(); n = ns.descriptor.handles.Load() {
		if ns.descriptor.handles.CompareAndSwap(n, n+1) {
			return &NS{descriptor: ns.descriptor, inode: ns.inode}, nil
		}
	}
	return nil, fmt.Errorf("duplicate network namespace %d: %w", ns.inode, os.ErrClosed)
}

// Close lets go of the namespace, which ends with its last handle, process and
// socket. A second Close returns an error that wraps os.ErrClosed.
func (ns *NS) Close() error {
	if ns.closed.Swap(true) {
		return fmt.Errorf("close network namespace %d: %w", ns.inode, os.ErrClosed)
	}
	if ns.descriptor.handles.Add(-1) > 0 {
		return nil
	}
	if err := ns.descriptor.file.Close(); err != nil {
		return fmt.Errorf("close network namespace %d: %w", ns.inode, err)
	}
	return nil
}

// String is for logs and messages: "netns 4026532281".
func (ns *NS) String() string { return fmt.Sprintf("netns %d", ns.inode) }

// control calls fn with the descriptor, which cannot be closed meanwhile.
func (ns *NS) control(fn func(fd int) error) error {
	if ns.closed.Load() {
		return os.ErrClosed
	}
	return control(ns.descriptor.file, fn)
}

// control calls fn with c's descriptor. A closed one is os.ErrClosed: package os
// has another error here than everywhere else.
func control(c syscall.Conn, fn func(fd int) error) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return os.ErrClosed
	}
	var fnErr error
	if err := raw.Control(func(fd uintptr) { fnErr = fn(int(fd)) }); err != nil {
		return os.ErrClosed
	}
	return fnErr
}

// edge adds the sentinel to an errno that means a missing privilege.
func edge(err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return fmt.Errorf("%w: %w", ErrPermission, err)
	}
	return err
}
