// SPDX-License-Identifier: Apache-2.0

package labtest

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/netns"
)

// dialTimeout bounds connects and accepts that ought to succeed.
const dialTimeout = 10 * time.Second

// Listen listens on a literal address inside ns, without Go's own keepalive on
// what it accepts and without Multipath TCP. Port 0 takes a free one; [::]
// takes IPv4 clients, too, as IPv4-mapped sockets.
func Listen(t testing.TB, ns *netns.NS, addr netip.AddrPort) *net.TCPListener {
	t.Helper()
	if !addr.Addr().Is4() {
		NeedIPv6(t)
	}
	cfg := net.ListenConfig{KeepAlive: -1}
	cfg.SetMultipathTCP(false)
	network := "tcp"
	if !addr.Addr().IsUnspecified() {
		network = version(addr)
	}
	var ln net.Listener
	err := ns.Do(func() (err error) {
		ln, err = cfg.Listen(context.Background(), network, addr.String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	return ln.(*net.TCPListener)
}

// Accept takes the listener's next connection.
func Accept(t testing.TB, ln *net.TCPListener) *net.TCPConn {
	t.Helper()
	return AcceptWithin(t, ln, dialTimeout)
}

// NarrowPair connects the lab's client to a server with a receive buffer of that many
// bytes. It has it before it accepts: older kernels drop without a word what was
// promised a place in a larger one.
func NarrowPair(t testing.TB, l *lab.Lab, buffer int) (client, server *net.TCPConn) {
	t.Helper()
	ln := Listen(t, l.Server, netip.AddrPortFrom(l.ServerAddr4, 0))
	Setsockopt(t, ln, unix.SOL_SOCKET, unix.SO_RCVBUF, buffer)
	client = Dial(t, l.Client, netip.AddrPort{}, Addr(ln.Addr()))
	return client, Accept(t, ln)
}

// AcceptWithin is Accept for one who may take that long to connect.
func AcceptWithin(t testing.TB, ln *net.TCPListener, limit time.Duration) *net.TCPConn {
	t.Helper()
	if err := ln.SetDeadline(time.Now().Add(limit)); err != nil {
		t.Fatal(err)
	}
	c, err := ln.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Dialer opens connections from inside a namespace.
type Dialer struct {
	NS    *netns.NS
	Local netip.AddrPort // zero: the kernel's choice; with Mapped, of its port alone
	// KeepAlive leaves Go's own keepalive options on, which are off otherwise.
	KeepAlive bool
	// Mapped connects an AF_INET6 socket to the IPv4 address, as ::ffff:a.b.c.d.
	Mapped bool
	// Setup, if any, gets the socket before it is bound and connected.
	Setup func(fd int) error
	// Timeout of the connect; 0 means 10 s.
	Timeout time.Duration
}

// Dial opens a connection without Go's keepalive. A zero local address is the
// kernel's choice.
func Dial(t testing.TB, ns *netns.NS, local, remote netip.AddrPort) *net.TCPConn {
	t.Helper()
	return Dialer{NS: ns, Local: local}.Dial(t, remote)
}

// Dial opens a connection or ends the test.
func (d Dialer) Dial(t testing.TB, remote netip.AddrPort) *net.TCPConn {
	t.Helper()
	if d.Mapped || !remote.Addr().Is4() {
		NeedIPv6(t)
	}
	c, err := d.Try(remote)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Try opens a connection, which the caller closes. The error is package net's.
func (d Dialer) Try(remote netip.AddrPort) (*net.TCPConn, error) {
	nd := net.Dialer{KeepAlive: -1, Timeout: d.Timeout}
	if d.KeepAlive {
		nd.KeepAlive = 0
	}
	if nd.Timeout == 0 {
		nd.Timeout = dialTimeout
	}
	if d.Setup != nil {
		nd.Control = func(_, _ string, raw syscall.RawConn) error {
			var err error
			return errors.Join(raw.Control(func(fd uintptr) { err = d.Setup(int(fd)) }), err)
		}
	}
	network := version(remote)
	switch {
	case d.Mapped:
		// An unspecified IPv6 source makes package net take AF_INET6.
		network, nd.LocalAddr = "tcp", &net.TCPAddr{IP: net.IPv6unspecified, Port: int(d.Local.Port())}
	case d.Local.IsValid():
		nd.LocalAddr = net.TCPAddrFromAddrPort(d.Local)
	}
	var c net.Conn
	err := d.NS.Do(func() (err error) {
		c, err = nd.Dial(network, remote.String())
		return err
	})
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

// Opening begins to open an IPv4 connection and does not wait. Where nobody answers it
// is in SYN_SENT until the test ends, or for the two minutes that the kernel tries.
func Opening(t testing.TB, ns *netns.NS, local, remote netip.AddrPort) (c *os.File, id conn.ID) {
	t.Helper()
	fd := -1
	err := ns.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	c = os.NewFile(uintptr(fd), "opening")
	t.Cleanup(func() { _ = c.Close() })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Port: int(local.Port()), Addr: local.Addr().As4()}); err != nil {
		t.Fatal(err)
	}
	err = unix.Connect(fd, &unix.SockaddrInet4{Port: int(remote.Port()), Addr: remote.Addr().As4()})
	if err != unix.EINPROGRESS {
		t.Fatalf("connect: %v, want it under way", err)
	}
	return c, conn.ID{Netns: ns.Inode(), Family: unix.AF_INET, Local: local, Remote: remote, Cookie: Cookie(t, c)}
}

func version(a netip.AddrPort) string {
	if a.Addr().Is4() {
		return "tcp4"
	}
	return "tcp6"
}

// Pair is a connection from the lab's client to its server over IPv4, with no
// option set on either end. Port 0 takes a free one.
func Pair(t testing.TB, l *lab.Lab, port uint16) (client, server *net.TCPConn) {
	t.Helper()
	return PairTo(t, Dialer{NS: l.Client}, l.Server, netip.AddrPortFrom(l.ServerAddr4, port))
}

// PairTo is a connection by d to a listener inside ns that accepts it alone.
func PairTo(t testing.TB, d Dialer, ns *netns.NS, addr netip.AddrPort) (client, server *net.TCPConn) {
	t.Helper()
	ln := Listen(t, ns, addr)
	defer ln.Close()
	client = d.Dial(t, Addr(ln.Addr()))
	return client, Accept(t, ln)
}

// Addr is a net.Addr of package net's TCP types, unmapped.
func Addr(a net.Addr) netip.AddrPort {
	ap := a.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}
