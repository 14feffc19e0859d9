// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/sockets"
)

// TestLeaveConnects: who is connecting when the programs come off for good has its own
// user timeout back.
func TestLeaveConnects(t *testing.T) {
	const port, own, bound = 7300, 600_000, 300_000
	for name, leave := range map[string]func(*testing.T, *runAgent){
		"detach":           func(t *testing.T, a *runAgent) { a.detach(t) },
		"detach --restore": func(t *testing.T, a *runAgent) { a.detach(t, "--restore") },
		"without pins":     func(t *testing.T, a *runAgent) {},
	} {
		t.Run(name, func(t *testing.T) {
			loadertest.Need(t, loadertest.Load(t), kernel.Adopt)
			a := newPinned(t)
			if name == "without pins" {
				a.bpffs = ""
			}
			a.write(t, runPolicy+"  - {name: slow, cidrs: [10.91.2.0/24], ports: [7300], connect_timeout: 5m}\n")
			a.start(t)
			labtest.Fault(t)(a.DropC2S(port))
			fd := connecting(t, a.Client, netip.AddrPortFrom(a.ServerAddr4, port), own)
			if got := userTimeout(t, fd); got != bound {
				t.Fatalf("while it connects the user timeout is %d ms, want %d", got, bound)
			}
			if code := a.terminate(t); code != exitOK {
				t.Errorf("exit code %d", code)
			}
			leave(t, a)
			if got := userTimeout(t, fd); got != own {
				t.Errorf("afterwards the user timeout is %d ms, want %d", got, own)
			}
		})
	}
}

// TestLeaveHeldUp: where an application keeps a socket locked its namespace is named, and
// the others do not wait for it.
func TestLeaveHeldUp(t *testing.T) {
	const own, port = 600_000, 7301
	b := loadertest.New(t, runPolicy+"  - {name: slow, cidrs: [10.91.2.0/24], ports: [7301], connect_timeout: 5m}\n")
	loadertest.Need(t, b.Programs, kernel.Adopt)
	client, server := labtest.Pair(t, b.Lab, 7100)
	labtest.Fault(t)(b.DropC2S(port))
	fd := connecting(t, b.Client, netip.AddrPortFrom(b.ServerAddr4, port), own)
	release := labtest.StuckSend(t, server)
	defer release()
	s := sockets.New(b.Programs)
	labtest.Eventually(t, time.Minute, func() bool {
		snap, err := s.Get(b.Server, labtest.Addr(server.LocalAddr()), labtest.Addr(server.RemoteAddr()))
		return err == nil && snap.Locked
	}, "the socket to be locked")
	spaces := func() []*netns.NS { return []*netns.NS{dup(t, b.Server), dup(t, b.Client)} } // the locked one first

	if err := b.Programs.Leave(); err != nil {
		t.Fatal(err)
	}
	l := newLeave(b.Programs, spaces())
	l.patience = time.Second
	if err := l.connects(t.Context()); err == nil || !strings.HasSuffix(err.Error(), "locked: "+b.Server.String()) {
		t.Errorf("leave: %v", err)
	}
	l.close()
	if got := userTimeout(t, fd); got != own {
		t.Errorf("connecting: user timeout %d ms, want %d", got, own)
	}

	if labtest.Options(t, client).UserTimeout == 0 {
		t.Fatal("not bounded")
	}
	l = newLeave(b.Programs, spaces())
	l.patience = time.Second
	released, pending, err := l.release(t.Context())
	if released == 0 || pending != 0 || err != nil || l.heldUp() == nil {
		t.Errorf("restore: %d released, %d pending, error %v, held up %v", released, pending, err, l.heldUp())
	}
	l.close()
	if got := labtest.Options(t, client); got.KeepAlive || got.UserTimeout != 0 {
		t.Errorf("restored: %+v", got)
	}
}

// detach takes the programs off, in every namespace of the machine.
func (a *runAgent) detach(t *testing.T, more ...string) {
	t.Helper()
	labtest.Everywhere(t)
	if _, stderr, code := a.output(t, a.ns, append([]string{"detach", "--yes", "--bpffs", a.bpffs}, more...)...); code != exitOK || stderr != "" {
		t.Errorf("detach: exit code %d, %q", code, stderr)
	}
}

// connecting is a socket with a user timeout of its own whose connect() is under way.
func connecting(t *testing.T, ns *netns.NS, to netip.AddrPort, ms int) (fd int) {
	t.Helper()
	err := ns.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, ms); err != nil {
		t.Fatal(err)
	}
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}); !errors.Is(err, unix.EINPROGRESS) {
		t.Fatalf("connect: %v, want it under way", err)
	}
	return fd
}

func userTimeout(t *testing.T, fd int) int {
	t.Helper()
	ms, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
	if err != nil {
		t.Fatal(err)
	}
	return ms
}

// dup returns a handle for another to close.
func dup(t *testing.T, ns *netns.NS) *netns.NS {
	t.Helper()
	own, err := ns.Dup()
	if err != nil {
		t.Fatal(err)
	}
	return own
}
