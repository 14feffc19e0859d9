// SPDX-License-Identifier: Apache-2.0

package labtest

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// StuckSend sends a page that is not there, until release brings it: the socket stays
// locked meanwhile, and no test runs that walks over all namespaces (Everywhere): the two
// do not go together in one test. It needs userfaultfd.
func StuckSend(t testing.TB, c *net.TCPConn) (release func()) {
	t.Helper()
	t.Cleanup(machineWide(t, unix.LOCK_EX)) // not before: walks that it held up are to end
	size := uintptr(os.Getpagesize())
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC, 0, 0)
	if errno != 0 {
		SkipOrFail(t, "needs userfaultfd: "+errno.Error())
	}
	t.Cleanup(func() { unix.Close(int(fd)) })
	page, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(page) })
	start := uint64(uintptr(unsafe.Pointer(&page[0])))
	ioctl := func(what string, request uintptr, arg *[4]uint64) {
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, request, uintptr(unsafe.Pointer(arg))); errno != 0 {
			t.Fatalf("%s: %v", what, errno)
		}
	}
	ioctl("UFFDIO_API", 0xc018aa3f, &[4]uint64{0xaa})
	ioctl("UFFDIO_REGISTER", 0xc020aa00, &[4]uint64{start, uint64(size), 1})
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		raw, err := c.SyscallConn()
		if err != nil {
			t.Error(err)
			return
		}
		raw.Write(func(sock uintptr) bool {
			if _, _, errno := unix.Syscall6(unix.SYS_SENDTO, sock, uintptr(start), size, 0, 0, 0); errno != 0 {
				t.Errorf("send: %v", errno)
			}
			return true
		})
	}()
	return func() {
		ioctl("UFFDIO_ZEROPAGE", 0xc020aa04, &[4]uint64{start, uint64(size)})
		<-sent
	}
}

// Everywhere says that the test walks over the sockets of every network namespace of this
// machine: until its end no other test's process keeps one locked.
func Everywhere(t testing.TB) {
	t.Helper()
	t.Cleanup(machineWide(t, unix.LOCK_SH))
}

// machineWide takes a lock that the tests of all packages share.
func machineWide(t testing.TB, how int) (release func()) {
	t.Helper()
	dir, err := os.Open(os.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	Eventually(t, 5*time.Minute, func() bool {
		err := unix.Flock(int(dir.Fd()), how|unix.LOCK_NB)
		if err != nil && !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			t.Fatalf("lock %s: %v", dir.Name(), err)
		}
		return err == nil
	}, "tests that lock a socket, or walk over those of all namespaces, to end")
	return func() { _ = dir.Close() }
}
