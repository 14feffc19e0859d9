// SPDX-License-Identifier: Apache-2.0

package guard_test

import (
	"fmt"
	"io"
	"net"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
)

// takenBack makes a connection whose peer takes its window back while data is under
// way: that data is retransmitted, and answered with a window that is shut. A kernel
// takes back what it gave where memory is short, or with tcp_shrink_window (Linux 6.5);
// here one end is told that it never gave it, which all can.
func takenBack(t *testing.T, b *loadertest.Bed) (c, peer *net.TCPConn) {
	t.Helper()
	c, peer = labtest.Pair(t, b.Lab, 0)
	half := make([]byte, 20<<10)
	if _, err := c.Write(half); err != nil {
		t.Fatal(err)
	}
	labtest.Eventually(t, late, func() bool { return labtest.TCPInfo(t, c).Unacked == 0 }, "the first half has come")
	drop := labtest.Fault(t)(b.DropC2S(labtest.Addr(peer.LocalAddr()).Port()))
	if _, err := c.Write(half); err != nil {
		t.Fatal(err)
	}
	labtest.Setsockopt(t, peer, unix.SOL_SOCKET, unix.SO_RCVBUF, 2<<10)
	labtest.Control(t, peer, neverGave)
	for range 2 { // says so: before Linux 6.18 a smaller window is believed from a later byte on
		if _, err := peer.Write([]byte{1}); err != nil {
			t.Fatal(err)
		}
	}
	labtest.Eventually(t, late, func() bool {
		i := labtest.TCPInfo(t, c)
		return i.Snd_wnd == 0 && i.Unacked > 0
	}, "the window is taken back")
	labtest.Heal(t, drop)
	return c, peer
}

// neverGave sets the window that a socket has given its peer to nothing.
func neverGave(fd int) error {
	var window struct{ sndWl1, sndWnd, maxWindow, rcvWnd, rcvWup uint32 } // struct tcp_repair_window
	size := uint32(unsafe.Sizeof(window))
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR, unix.TCP_REPAIR_ON); err != nil {
		return err
	}
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.IPPROTO_TCP, unix.TCP_REPAIR_WINDOW,
		uintptr(unsafe.Pointer(&window)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return errno
	}
	window.rcvWnd = 0
	_, _, errno = unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.IPPROTO_TCP, unix.TCP_REPAIR_WINDOW,
		uintptr(unsafe.Pointer(&window)), uintptr(size), 0)
	if errno != 0 {
		return errno
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR, unix.TCP_REPAIR_OFF_NO_WP)
}

// TestTakenBackCap: a peer that took its window back is not brought under a limit of
// retransmissions, which counts those that it has answered as well.
func TestTakenBackCap(t *testing.T) {
	const either = "version: 1\ndefaults: {user_timeout: 30s, in_flight: %s}\npeers: [{name: server, cidrs: [10.91.2.0/24]}]\n"
	b := loadertest.New(t, fmt.Sprintf(either, "user_timeout"))
	loadertest.Need(t, b.Programs, kernel.RTOCap)
	c, _ := takenBack(t, b)
	before := labtest.RTOMax(t, c)
	b.SetPolicy(t, fmt.Sprintf(either, "rto_cap"))
	var told []loader.Adoption
	err := b.Client.Do(func() error {
		_, err := b.Programs.Adopt(loader.AdoptOptions{Budget: 10}, func(one loader.Adoption) error {
			told = append(told, one)
			return nil
		})
		return err
	})
	if err != nil || len(told) != 1 || told[0].Wait != loader.WaitWindow {
		t.Errorf("told %+v (%v)", told, err)
	}
	if got := labtest.RTOMax(t, c); got != before || labtest.Options(t, c).UserTimeout != 30*time.Second {
		t.Errorf("TCP_RTO_MAX_MS %s, options %+v", got, labtest.Options(t, c))
	}
}

// TestTakenBack: a peer that takes its window back, and answers, lives longer than the
// user timeout, and has it back when it reads; one whose path is gone ends within it
// (kernel-facts L10).
func TestTakenBack(t *testing.T) {
	b := loadertest.New(t, slowReaders)
	loadertest.Need(t, b.Programs, kernel.Guard)
	g, _ := start(t, b)
	kept, keptPeer := takenBack(t, b)
	lost, lostPeer := takenBack(t, b)
	shut(t, g, 2)
	began, before, resent := time.Now(), labtest.TCPInfo(t, kept), false
	labtest.Eventually(t, 3*userTimeout+late, func() bool {
		if now := labtest.TCPInfo(t, kept); now.State == unix.BPF_TCP_ESTABLISHED {
			resent = resent || now.Last_data_sent < before.Last_data_sent && now.Retransmits == before.Retransmits
			before = now
		}
		return time.Since(began) > userTimeout*5/2 || !lives(t, kept) || !lives(t, lost)
	}, "time to pass")
	if !lives(t, kept) || !lives(t, lost) {
		t.Fatalf("after %s: alive %t and %t", time.Since(began), lives(t, kept), lives(t, lost))
	}
	if !resent {
		t.Errorf("no retransmission that is not counted was seen, at last %+v", before)
	}
	labtest.Setsockopt(t, keptPeer, unix.SOL_SOCKET, unix.SO_RCVBUF, 64<<10)
	go io.Copy(io.Discard, keptPeer)
	labtest.Eventually(t, late, func() bool { return labtest.Options(t, kept).UserTimeout == userTimeout }, "it has its user timeout back")
	if !lives(t, kept) {
		t.Error("the peer that reads again is ended")
	}
	if !loadertest.Has(t, b.Programs, kernel.RTOCap) {
		return // it takes minutes
	}
	labtest.Fault(t)(b.DropPort(labtest.Addr(lostPeer.LocalAddr()).Port()))
	dropped := time.Now()
	labtest.Eventually(t, userTimeout+g.Status().Interval+late, func() bool { return !lives(t, lost) }, "it is ended")
	t.Logf("ended %s after its path", time.Since(dropped))
}
