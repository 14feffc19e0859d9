// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"errors"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/netns"
)

// attempt is a socket whose connect() is under way.
type attempt struct {
	t      *testing.T
	fd     int
	remote netip.AddrPort
	began  time.Time
	// underWay is the user timeout in ms as it was when connect() had begun.
	underWay int
}

// try begins to connect without waiting. Mapped connects an AF_INET6 socket to an
// IPv4 address. setup, if any, gets the socket before.
func try(t *testing.T, ns *netns.NS, remote netip.AddrPort, mapped bool, setup func(*attempt)) *attempt {
	t.Helper()
	a := &attempt{t: t, remote: remote}
	family := unix.AF_INET
	if mapped || !remote.Addr().Is4() {
		labtest.NeedIPv6(t)
		family = unix.AF_INET6
	}
	err := ns.Do(func() (err error) {
		a.fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		return os.NewSyscallError("socket", err)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(a.fd) })
	if setup != nil {
		setup(a)
	}
	a.connect(family)
	return a
}

// connect begins, also once more.
func (a *attempt) connect(family int) {
	a.t.Helper()
	var sa unix.Sockaddr = &unix.SockaddrInet6{Port: int(a.remote.Port()), Addr: a.remote.Addr().As16()}
	if family == unix.AF_INET {
		sa = &unix.SockaddrInet4{Port: int(a.remote.Port()), Addr: a.remote.Addr().As4()}
	}
	a.began = time.Now()
	err := unix.Connect(a.fd, sa)
	if errors.Is(err, unix.ECONNABORTED) { // the kernel's word for an attempt that has ended
		err = unix.Connect(a.fd, sa)
	}
	if !errors.Is(err, unix.EINPROGRESS) {
		a.t.Fatalf("connect to %s: %v, want it under way", a.remote, err)
	}
	a.underWay = a.userTimeout()
}

func (a *attempt) get(level, option int) int {
	a.t.Helper()
	v, err := unix.GetsockoptInt(a.fd, level, option)
	if err != nil {
		a.t.Fatal(err)
	}
	return v
}

func (a *attempt) set(level, option, value int) {
	a.t.Helper()
	if err := unix.SetsockoptInt(a.fd, level, option, value); err != nil {
		a.t.Fatal(err)
	}
}

// userTimeout reads the option, in milliseconds.
func (a *attempt) userTimeout() int { return a.get(unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT) }

// ended returns how connect() ended, and when; nil: it succeeded.
func (a *attempt) ended(limit time.Duration) (error, time.Duration) {
	a.t.Helper()
	p := []unix.PollFd{{Fd: int32(a.fd), Events: unix.POLLOUT}}
	for deadline := a.began.Add(limit); ; {
		n, err := unix.Poll(p, max(0, int(time.Until(deadline)/time.Millisecond))) // below 0 is for ever
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			a.t.Fatalf("connect to %s has not ended after %s (%v)", a.remote, limit, err)
		}
		break
	}
	took := time.Since(a.began)
	if errno := a.get(unix.SOL_SOCKET, unix.SO_ERROR); errno != 0 {
		return unix.Errno(errno), took
	}
	return nil, took
}

// options are those of the socket, as its application reads them.
func (a *attempt) options() conn.Options {
	a.t.Helper()
	dup, err := unix.Dup(a.fd)
	if err != nil {
		a.t.Fatal(err)
	}
	f := os.NewFile(uintptr(dup), "socket")
	defer f.Close()
	return labtest.Options(a.t, f)
}

func (a *attempt) wantOptions(want conn.Options) {
	a.t.Helper()
	if d := cmp.Diff(want, a.options()); d != "" {
		a.t.Errorf("connected: options (-want +got):\n%s", d)
	}
}

// record is what the programs have of a connection that was made.
func (a *attempt) record(p *loader.Programs, ns *netns.NS) conn.Record {
	a.t.Helper()
	local, err := unix.Getsockname(a.fd)
	if err != nil {
		a.t.Fatal(err)
	}
	four := local.(*unix.SockaddrInet4)
	return mustRecord(a.t, p, ns, netip.AddrPortFrom(netip.AddrFrom4(four.Addr), uint16(four.Port)), a.remote)
}

// mustRecord looks a connection of the namespace up.
func mustRecord(t *testing.T, p *loader.Programs, ns *netns.NS, local, remote netip.AddrPort) conn.Record {
	t.Helper()
	var s conn.Snapshot
	err := ns.Do(func() (err error) {
		s, err = p.Look(local, remote, 0)
		return err
	})
	if err != nil || !s.HasRecord {
		t.Fatalf("look at %s: %+v, %v", local, s, err)
	}
	return s.Record
}
