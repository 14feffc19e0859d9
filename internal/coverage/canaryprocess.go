// SPDX-License-Identifier: Apache-2.0

package coverage

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/loader"
)

// CanaryProcess is the canary itself: when in ends it opens one connection, and
// writes to out what it reads back from both ends. The calling thread is in a
// namespace with nothing but its loopback device.
func CanaryProcess(in io.Reader, out io.Writer) error {
	if _, err := io.Copy(io.Discard, in); err != nil {
		return fmt.Errorf("wait to be placed: %w", err)
	}
	outbound, inbound, err := canaryPair()
	if err != nil {
		return err
	}
	var saw canarySaw
	for fd, to := range map[int]*conn.Options{outbound: &saw.Outbound, inbound: &saw.Inbound} {
		if *to, err = readOptions(fd); err != nil {
			return err
		}
	}
	// Looser than the canary's policy: an application that spoils its bound.
	for _, o := range []struct{ level, name, value int }{
		{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 0},
		{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 7200},
		{unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 0},
	} {
		if err := unix.SetsockoptInt(outbound, o.level, o.name, o.value); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	if saw.Held, err = readOptions(outbound); err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(&saw)
}

// canaryPair opens a connection to itself. The sockets are the kernel's to close,
// when the process ends.
func canaryPair() (outbound, inbound int, err error) {
	to := &unix.SockaddrInet4{Addr: loader.CanaryAddr().As4(), Port: loader.CanaryPort}
	socket := func() (int, error) {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		return fd, os.NewSyscallError("socket", err)
	}
	listener, err := socket()
	if err != nil {
		return -1, -1, err
	}
	if err := unix.Bind(listener, to); err != nil {
		return -1, -1, os.NewSyscallError("bind", err)
	}
	if err := unix.Listen(listener, 1); err != nil {
		return -1, -1, os.NewSyscallError("listen", err)
	}
	if outbound, err = socket(); err != nil {
		return -1, -1, err
	}
	// From that address too: it is the peer of both ends.
	if err := unix.Bind(outbound, &unix.SockaddrInet4{Addr: to.Addr}); err != nil {
		return -1, -1, os.NewSyscallError("bind", err)
	}
	if err := unix.Connect(outbound, to); err != nil {
		return -1, -1, os.NewSyscallError("connect", err)
	}
	inbound, _, err = unix.Accept4(listener, unix.SOCK_CLOEXEC)
	return outbound, inbound, os.NewSyscallError("accept", err)
}

// readOptions reads the five options as any application can.
func readOptions(fd int) (o conn.Options, err error) {
	var values [5]int
	for i, at := range [...]struct{ level, name int }{
		{unix.SOL_SOCKET, unix.SO_KEEPALIVE}, {unix.IPPROTO_TCP, unix.TCP_KEEPIDLE}, {unix.IPPROTO_TCP, unix.TCP_KEEPINTVL},
		{unix.IPPROTO_TCP, unix.TCP_KEEPCNT}, {unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT},
	} {
		if values[i], err = unix.GetsockoptInt(fd, at.level, at.name); err != nil {
			return o, os.NewSyscallError("getsockopt", err)
		}
	}
	return conn.Options{
		KeepAlive: values[0] != 0, Idle: time.Duration(values[1]) * time.Second, Interval: time.Duration(values[2]) * time.Second,
		Count: values[3], UserTimeout: time.Duration(values[4]) * time.Millisecond,
	}, nil
}
