// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"encoding/binary"
	"encoding/hex"
	"net"
	"net/netip"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
)

// TestOutsideUntouched compares every option that getsockopt has, raw, between
// a connection to a peer outside the policy and one made before the programs
// were attached.
func TestOutsideUntouched(t *testing.T) {
	b := loadertest.New(t, slowPolicy+`
peers: [{name: elsewhere, cidrs: [192.0.2.0/24]}]
`)
	client, server := labtest.Pair(t, b.Lab, 0)
	if err := b.Cgroup.Leave(); err != nil {
		t.Fatal(err)
	}
	plainClient, plainServer := labtest.Pair(t, b.Lab, 0)
	if err := b.Cgroup.Enter(); err != nil {
		t.Fatal(err)
	}
	compareOptions(t, "client", client, plainClient)
	compareOptions(t, "server", server, plainServer)
	// The comparison must be able to fail.
	labtest.Setsockopt(t, client, unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 7)
	if raw(t, client, unix.IPPROTO_TCP, unix.TCP_KEEPCNT) == raw(t, plainClient, unix.IPPROTO_TCP, unix.TCP_KEEPCNT) {
		t.Error("a changed option goes unseen")
	}
}

func compareOptions(t *testing.T, what string, a, b *net.TCPConn) {
	t.Helper()
	volatile := map[[2]int]bool{
		{unix.IPPROTO_TCP, unix.TCP_INFO}: true, {unix.IPPROTO_TCP, unix.TCP_CC_INFO}: true,
		{unix.IPPROTO_TCP, unix.TCP_TIMESTAMP}: true, {unix.SOL_SOCKET, unix.SO_COOKIE}: true,
		{unix.SOL_SOCKET, unix.SO_INCOMING_CPU}: true, {unix.SOL_SOCKET, unix.SO_MEMINFO}: true,
		{unix.IPPROTO_TCP, unix.TCP_ZEROCOPY_RECEIVE}: true, {unix.SOL_SOCKET, unix.SO_PEERNAME}: true,
		{unix.IPPROTO_TCP, unix.TCP_ULP}: true,
		{unix.IPPROTO_IP, 52}:            true, // IP_PROTOCOL, the local port of a TCP socket
	}
	n := 0
	for _, level := range []int{unix.SOL_SOCKET, unix.IPPROTO_TCP, unix.IPPROTO_IP} {
		for option := 1; option < 90; option++ {
			if volatile[[2]int{level, option}] {
				continue
			}
			got, want := raw(t, a, level, option), raw(t, b, level, option)
			if got != want {
				t.Errorf("%s: level %d option %d: %s, without the programs %s", what, level, option, got, want)
			}
			if len(got) > 0 && got[0] != 'e' {
				n++
			}
		}
	}
	if n < 40 {
		t.Errorf("%s: only %d options could be compared", what, n)
	}
}

// raw returns an option's bytes in hexadecimal, or the errno.
func raw(t *testing.T, c *net.TCPConn, level, option int) string {
	t.Helper()
	var out string
	labtest.Control(t, c, func(fd int) error {
		buf := make([]byte, 256)
		size := uint32(len(buf))
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
			uintptr(unsafe.Pointer(&buf[0])), uintptr(unsafe.Pointer(&size)), 0)
		out = hex.EncodeToString(buf[:min(int(size), len(buf))])
		if errno != 0 {
			out = "errno " + errno.Error()
		}
		return nil
	})
	return out
}

// TestReusedSocket: a socket that is disconnected and connected to a peer that
// no policy names carries nothing of ours any more.
func TestReusedSocket(t *testing.T) {
	b := loadertest.New(t, slowPolicy+`
peers: [{name: server, cidrs: [10.91.2.0/24]}]
`)
	client, _ := labtest.Pair(t, b.Lab, 0)
	other := labtest.Listen(t, b.Servers[1].NS, netip.AddrPortFrom(b.Servers[1].Addr4, 0))
	labtest.Control(t, client, func(fd int) error {
		unspec := unix.RawSockaddr{Family: unix.AF_UNSPEC}
		if _, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&unspec)), unsafe.Sizeof(unspec)); errno != 0 {
			return errno
		}
		unix.SetNonblock(fd, false)
		defer unix.SetNonblock(fd, true)
		to := labtest.Addr(other.Addr())
		return unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())})
	})
	labtest.Setsockopt(t, client, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 900_000)
	if got := labtest.Options(t, client).UserTimeout; got != 900*time.Second {
		t.Errorf("user timeout %v, want the application's 900s", got)
	}
	c := mustCounters(t, b.Programs, "server")
	if c.OpenedOutbound != 1 || c.Open() != 0 {
		t.Errorf("counters %+v, want 1 opened and none open", c)
	}
}

// TestFlowLabelManager: an option that the kernel writes back through keeps
// working (IPV6_FLOWLABEL_MGR).
func TestFlowLabelManager(t *testing.T) {
	b := loadertest.New(t, loadertest.Fast)
	client, _ := labtest.PairTo(t, labtest.Dialer{NS: b.Client}, b.Server, netip.AddrPortFrom(b.ServerAddr6, 0))
	if flowLabel(t, client, b.ServerAddr6) == 0 {
		t.Error("no label was written back")
	}
}

// flowLabel asks the kernel to choose a label and returns what it writes back.
func flowLabel(t *testing.T, c *net.TCPConn, dst netip.Addr) uint32 {
	t.Helper()
	var label uint32
	labtest.Control(t, c, func(fd int) error {
		req := make([]byte, 32) // struct in6_flowlabel_req
		addr := dst.As16()
		copy(req, addr[:])
		req[21], req[22] = 255, 1                                                             // IPV6_FL_S_ANY, IPV6_FL_F_CREATE
		_, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.IPPROTO_IPV6, 32, /* IPV6_FLOWLABEL_MGR */
			uintptr(unsafe.Pointer(&req[0])), uintptr(len(req)), 0)
		label = binary.BigEndian.Uint32(req[16:20])
		if errno != 0 {
			return errno
		}
		return nil
	})
	return label
}
