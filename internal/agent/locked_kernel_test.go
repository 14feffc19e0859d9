// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"io"
	"net"
	"os"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/agent"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/sockets"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

// TestLockedSocket: an application is stuck in a page fault while it sends, with
// the socket locked, as happens when its memory is on a disk that hangs. The
// peer answers, and the answers wait behind the lock.
func TestLockedSocket(t *testing.T) {
	b := newBed(t, patient)
	client, server := labtest.Pair(t, b.Lab, 0)
	other, otherPeer := labtest.Pair(t, b.Lab, 0)
	exchange(t, client, server)
	exchange(t, other, otherPeer)
	b.silent(t, b.Client, client, 1200*time.Millisecond)
	release := stuckSend(t, client)
	s := sockets.New(b.Programs)
	labtest.Eventually(t, late, func() bool {
		snap, err := s.Get(b.Client, labtest.Addr(client.LocalAddr()), labtest.Addr(client.RemoteAddr()))
		return err == nil && snap.Locked
	}, "the socket to be locked")

	r := b.judge(t, report(b.Client, client, time.Second))
	if r.Verdict != verdict.AliveSlow && r.Reason != verdict.ReasonUnconfirmed && r.Reason != verdict.ReasonLocked || r.Action != agent.ActionNone {
		t.Errorf("result %+v", r)
	}
	// The walk that the lock holds up must not cost others their verdict.
	wantVerdict(t, b.judge(t, report(b.Client, other, time.Second)), verdict.AliveSlow, "", agent.ActionNone)

	release()
	buf := make([]byte, 8192)
	server.SetReadDeadline(time.Now().Add(late))
	if _, err := io.ReadFull(server, buf[:os.Getpagesize()]); err != nil {
		t.Errorf("what was being sent: %v", err)
	}
	wantWorks(t, client, server)
}

// stuckSend sends a page that is not there, until release brings it.
func stuckSend(t *testing.T, c *net.TCPConn) (release func()) {
	t.Helper()
	size := uintptr(os.Getpagesize())
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC, 0, 0)
	if errno != 0 {
		labtest.SkipOrFail(t, "needs userfaultfd: "+errno.Error())
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
