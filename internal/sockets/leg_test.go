// SPDX-License-Identifier: Apache-2.0

package sockets_test

import (
	"net"
	"net/netip"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/sockets"
)

// TestLocalLeg: who answers for the peer from this namespace is found out, however
// it got between, and on both of its ends; who is not a proxy is not taken for one.
func TestLocalLeg(t *testing.T) {
	b := loadertest.New(t, loadertest.Fast)
	s := sockets.New(b.Programs)
	own := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(b.ClientAddr4, port) }
	peer := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(b.ServerAddr4, port) }
	want := func(name string, ns *netns.NS, c *net.TCPConn, want bool) {
		t.Helper()
		snap, err := get(s, ns, c)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got, err := s.LocalLeg(ns, &snap); err != nil || got != want {
			t.Errorf("%s: local %t, %v, want %t", name, got, err, want)
		}
	}

	far, farPeer := labtest.PairTo(t, labtest.Dialer{NS: b.Client}, b.Server, peer(7100))
	want("nobody between, nothing tracked", b.Client, far, false)
	far6, _ := labtest.PairTo(t, labtest.Dialer{NS: b.Client}, b.Server, netip.AddrPortFrom(b.ServerAddr6, 7100))
	want("the same over IPv6", b.Client, far6, false)
	near, nearPeer := labtest.PairTo(t, labtest.Dialer{NS: b.Client}, b.Client, own(7101))
	want("a peer on this host", b.Client, near, false)
	want("its client", b.Client, nearPeer, false)

	labtest.Redirect(t, b.Client, 7102, 15001)
	proxy := labtest.Listen(t, b.Client, netip.MustParseAddrPort("0.0.0.0:15001"))
	caught := labtest.Dial(t, b.Client, netip.AddrPort{}, peer(7102))
	taken := labtest.Accept(t, proxy)
	want("redirected", b.Client, caught, true)
	want("what the proxy has taken", b.Client, taken, false)
	mapped := labtest.Dialer{NS: b.Client, Mapped: true}.Dial(t, peer(7102))
	want("redirected, IPv4 in an IPv6 socket", b.Client, mapped, true)
	labtest.Translate(t, b.Client, 7103, b.Servers[1].Addr4.As4())
	service := labtest.Listen(t, b.Servers[1].NS, netip.AddrPortFrom(b.Servers[1].Addr4, 7103))
	served := labtest.Dial(t, b.Client, netip.AddrPort{}, peer(7103))
	backend := labtest.Accept(t, service)
	want("translated to another host", b.Client, served, false)
	want("what that host has taken", b.Servers[1].NS, backend, false)
	want("nobody between, tracked from its middle on", b.Client, far, false)
	fresh, _ := labtest.PairTo(t, labtest.Dialer{NS: b.Client}, b.Server, peer(7104))
	want("nobody between, tracked", b.Client, fresh, false)
	want("the far end", b.Server, farPeer, false)

	labtest.Intercept(t, b.Client, 7105, 15002)
	ln := transparent(t, b.Client, 15002)
	through := labtest.Dial(t, b.Client, netip.AddrPort{}, peer(7105))
	labtest.Accept(t, ln)
	want("intercepted", b.Client, through, true)
}

// transparent listens with IP_TRANSPARENT.
func transparent(t *testing.T, ns *netns.NS, port uint16) *net.TCPListener {
	t.Helper()
	cfg := net.ListenConfig{KeepAlive: -1, Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		if cerr := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TRANSPARENT, 1) }); cerr != nil {
			return cerr
		}
		return err
	}}
	cfg.SetMultipathTCP(false)
	var ln net.Listener
	err := ns.Do(func() (err error) {
		ln, err = cfg.Listen(t.Context(), "tcp4", netip.AddrPortFrom(netip.IPv4Unspecified(), port).String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	return ln.(*net.TCPListener)
}

func BenchmarkLocalLeg(b *testing.B) {
	bed := loadertest.New(b, loadertest.Fast)
	s := sockets.New(bed.Programs)
	client, _ := labtest.PairTo(b, labtest.Dialer{NS: bed.Client}, bed.Server, netip.AddrPortFrom(bed.ServerAddr4, 7100))
	snap, err := get(s, bed.Client, client)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := s.LocalLeg(bed.Client, &snap); err != nil {
			b.Fatal(err)
		}
	}
}
