// SPDX-License-Identifier: Apache-2.0

package labtest

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/netns"
	"golang.org/x/sys/unix"
)

// Control calls fn with the connection's descriptor.
func Control(t testing.TB, c syscall.Conn, fn func(fd int) error) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err == nil {
		if ctlErr := raw.Control(func(fd uintptr) { err = fn(int(fd)) }); ctlErr != nil {
			err = ctlErr
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Getsockopt reads one integer option, as the application would.
func Getsockopt(t testing.TB, c syscall.Conn, level, option int) int {
	t.Helper()
	var v int
	Control(t, c, func(fd int) (err error) {
		v, err = unix.GetsockoptInt(fd, level, option)
		return err
	})
	return v
}

// Setsockopt sets one integer option, as the application would.
func Setsockopt(t testing.TB, c syscall.Conn, level, option, value int) {
	t.Helper()
	Control(t, c, func(fd int) error { return unix.SetsockoptInt(fd, level, option, value) })
}

// Options reads the five options that bound a connection. Where the kernel's
// default is in force, that is what they show (7200 s, 75 s, 9).
func Options(t testing.TB, c syscall.Conn) conn.Options {
	t.Helper()
	get := func(option int) int { return Getsockopt(t, c, unix.IPPROTO_TCP, option) }
	return conn.Options{
		KeepAlive:   Getsockopt(t, c, unix.SOL_SOCKET, unix.SO_KEEPALIVE) != 0,
		Idle:        time.Duration(get(unix.TCP_KEEPIDLE)) * time.Second,
		Interval:    time.Duration(get(unix.TCP_KEEPINTVL)) * time.Second,
		Count:       get(unix.TCP_KEEPCNT),
		UserTimeout: time.Duration(get(unix.TCP_USER_TIMEOUT)) * time.Millisecond,
	}
}

// RTOMax reads TCP_RTO_MAX_MS; 0: this kernel has no such option.
func RTOMax(t testing.TB, c syscall.Conn) time.Duration {
	t.Helper()
	const option = 44
	var ms int
	Control(t, c, func(fd int) (err error) {
		ms, err = unix.GetsockoptInt(fd, unix.IPPROTO_TCP, option)
		if errors.Is(err, unix.ENOPROTOOPT) {
			return nil
		}
		return err
	})
	return time.Duration(ms) * time.Millisecond
}

// Cookie reads SO_COOKIE.
func Cookie(t testing.TB, c syscall.Conn) uint64 {
	t.Helper()
	var v uint64
	Control(t, c, func(fd int) (err error) {
		v, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
		return err
	})
	return v
}

// TCPInfo reads TCP_INFO.
func TCPInfo(t testing.TB, c syscall.Conn) *unix.TCPInfo {
	t.Helper()
	var v *unix.TCPInfo
	Control(t, c, func(fd int) (err error) {
		v, err = unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		return err
	})
	return v
}

// State reads the connection's TCP state.
func State(t testing.TB, c syscall.Conn) conn.State {
	t.Helper()
	return conn.State(TCPInfo(t, c).State)
}

// ID names a connection of ns exactly, as the rest of sockhealth does.
func ID(t testing.TB, ns *netns.NS, c *net.TCPConn) conn.ID {
	t.Helper()
	return conn.ID{
		Netns:   ns.Inode(),
		Family:  uint8(Getsockopt(t, c, unix.SOL_SOCKET, unix.SO_DOMAIN)),
		Ifindex: uint32(Getsockopt(t, c, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX)),
		Local:   Addr(c.LocalAddr()),
		Remote:  Addr(c.RemoteAddr()),
		Cookie:  Cookie(t, c),
	}
}

// descriptors returns this process's own, by number. The runtime's are left out:
// they are made at some first use and stay.
func descriptors(t testing.TB) map[string]string {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	open := make(map[string]string)
	for _, e := range entries {
		target, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name()))
		if err == nil && target != "anon_inode:[eventpoll]" && target != "anon_inode:[eventfd]" {
			open[e.Name()] = target
		}
	}
	return open
}
