// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
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
			fd := connecting(t, a, netip.AddrPortFrom(a.ServerAddr4, port), own)
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

func (a *runAgent) detach(t *testing.T, more ...string) {
	t.Helper()
	if _, stderr, code := a.output(t, a.ns, append([]string{"detach", "--yes", "--bpffs", a.bpffs}, more...)...); code != exitOK || stderr != "" {
		t.Errorf("detach: exit code %d, %q", code, stderr)
	}
}

// connecting is a socket with a user timeout of its own whose connect() is under way.
func connecting(t *testing.T, a *runAgent, to netip.AddrPort, ms int) (fd int) {
	t.Helper()
	err := a.Client.Do(func() (err error) {
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
