// SPDX-License-Identifier: Apache-2.0

package labtest

import (
	"net"
	"net/netip"
	"testing"

	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/netns"
)

// ListenMultipath listens on an IPv4 address inside ns for Multipath TCP, which
// takes clients of plain TCP, too.
func ListenMultipath(t testing.TB, ns *netns.NS, addr netip.AddrPort) *net.TCPListener {
	t.Helper()
	cfg := net.ListenConfig{KeepAlive: -1}
	cfg.SetMultipathTCP(true)
	var ln net.Listener
	err := ns.Do(func() (err error) {
		ln, err = cfg.Listen(t.Context(), "tcp4", addr.String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	return ln.(*net.TCPListener)
}

// DialMultipath opens a connection of Multipath TCP to a listener of its kind, or
// ends the test where the kernel is built without. Before Linux 5.15 that is usual.
func DialMultipath(t testing.TB, ns *netns.NS, remote netip.AddrPort) *net.TCPConn {
	t.Helper()
	d := net.Dialer{KeepAlive: -1, Timeout: dialTimeout}
	d.SetMultipathTCP(true)
	var c net.Conn
	err := ns.Do(func() (err error) {
		c, err = d.Dial("tcp4", remote.String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if ok, err := c.(*net.TCPConn).MultipathTCP(); err != nil || !ok {
		running, name, rerr := kernel.Running()
		if rerr == nil && running.Before(kernel.Release{Major: 5, Minor: 15}) {
			t.Skipf("needs Multipath TCP, which %s has not", name)
		}
		SkipOrFail(t, "needs Multipath TCP (CONFIG_MPTCP)")
	}
	return c.(*net.TCPConn)
}
