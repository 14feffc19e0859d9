// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/netns"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo sends a line to and fro.
func echo(t *testing.T, a, b net.Conn) {
	t.Helper()
	for _, way := range [][2]net.Conn{{a, b}, {b, a}} {
		if _, err := way[0].Write([]byte("ping")); err != nil {
			t.Fatal(err)
		}
		if err := way[1].SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 4)
		if _, err := io.ReadFull(way[1], buf); err != nil || string(buf) != "ping" {
			t.Fatalf("read %q, %v", buf, err)
		}
	}
}

func TestEveryHostIsReachedThroughTheRouter(t *testing.T) {
	labtest.NeedIPv6(t)
	labtest.NoLeak(t)
	second4, second6 := netip.MustParseAddr("10.91.2.3"), netip.MustParseAddr("fd91:0:0:2::3")
	client4 := netip.MustParseAddr("10.91.1.3")
	l := labtest.New(t, lab.Options{
		Servers:     2,
		ServerAddrs: []netip.Addr{second4, second6},
		ClientAddrs: []netip.Addr{client4},
	})
	seen := labtest.Counter(t)(l.Count(lab.Match{Set: lab.SYN, Clear: lab.ACK}))
	var zero netip.AddrPort
	for name, c := range map[string]struct {
		local  netip.AddrPort
		ns     *netns.NS
		addr   netip.Addr
		mapped bool
		want   netip.Addr
	}{
		"v4":             {zero, l.Server, l.ServerAddr4, false, netip.MustParseAddr("10.91.1.2")},
		"v6":             {zero, l.Server, l.ServerAddr6, false, netip.MustParseAddr("fd91:0:0:1::2")},
		"mapped":         {zero, l.Server, l.ServerAddr4, true, netip.MustParseAddr("10.91.1.2")},
		"second address": {zero, l.Server, second4, false, l.ClientAddr4},
		"second v6":      {zero, l.Server, second6, false, l.ClientAddr6},
		"second client":  {netip.AddrPortFrom(client4, 0), l.Server, l.ServerAddr4, false, client4},
		"second host":    {zero, l.Servers[1].NS, netip.MustParseAddr("10.91.3.2"), false, l.ClientAddr4},
		"second host v6": {zero, l.Servers[1].NS, l.Servers[1].Addr6, false, l.ClientAddr6},
	} {
		before := labtest.Packets(t, seen)
		d := labtest.Dialer{NS: l.Client, Local: c.local, Mapped: c.mapped}
		client, server := labtest.PairTo(t, d, c.ns, netip.AddrPortFrom(c.addr, 0))
		echo(t, client, server)
		if got := labtest.Addr(server.RemoteAddr()).Addr(); got != c.want {
			t.Errorf("%s: the server sees %s, want %s", name, got, c.want)
		}
		if n := labtest.Packets(t, seen) - before; n != 1 {
			t.Errorf("%s: %d SYNs through the router, want 1", name, n)
		}
		if got := labtest.ID(t, l.Client, client).Mapped(); got != c.mapped {
			t.Errorf("%s: mapped = %v", name, got)
		}
	}
}

// A connection has no options but those that a test sets.
func TestConnectionsAreBare(t *testing.T) {
	l := labtest.New(t, lab.Options{})
	client, server := labtest.Pair(t, l, 7100)
	want := conn.Options{Idle: 7200 * time.Second, Interval: 75 * time.Second, Count: 9}
	for name, c := range map[string]*net.TCPConn{"client": client, "server": server} {
		if got := labtest.Options(t, c); got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
	if labtest.Cookie(t, client) == labtest.Cookie(t, server) {
		t.Error("both ends have one cookie")
	}
	goes := labtest.Dialer{NS: l.Client, KeepAlive: true}
	ln := labtest.Listen(t, l.Server, netip.AddrPortFrom(l.ServerAddr4, 7101))
	if got := labtest.Options(t, goes.Dial(t, labtest.Addr(ln.Addr()))); !got.KeepAlive || got.Idle != 15*time.Second {
		t.Errorf("with Go's keepalive: %+v", got)
	}
}

func TestWrongOptionsLeaveNothing(t *testing.T) {
	labtest.Root(t)
	labtest.NoLeak(t)
	for name, opts := range map[string]lab.Options{
		"servers":  {Servers: 201},
		"negative": {Servers: -1},
		"outside":  {ServerAddrs: []netip.Addr{netip.MustParseAddr("10.91.9.3")}},
		"taken":    {ClientAddrs: []netip.Addr{netip.MustParseAddr("10.91.1.2")}},
	} {
		if l, err := lab.New(opts); err == nil {
			t.Errorf("%s: built", name)
			_ = l.Close()
		}
	}
}

func TestCloseLeavesNothing(t *testing.T) {
	labtest.NoLeak(t)
	before := everyNetns(t)
	l := labtest.New(t, lab.Options{Servers: 2})
	client, _ := labtest.Pair(t, l, 0)
	_ = client.Close()
	fault := labtest.Fault(t)(l.DropPort(7100))
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := fault.Heal(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Heal after Close: %v", err)
	}
	if _, err := l.DropPort(7100); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Drop after Close: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	for _, inode := range everyNetns(t) {
		if !slices.Contains(before, inode) && (inode == l.Client.Inode() || inode == l.Router.Inode() || inode == l.Server.Inode()) {
			t.Errorf("a process is left in namespace %d", inode)
		}
	}
}

func everyNetns(t *testing.T) []uint32 {
	t.Helper()
	list, err := netns.List()
	if err != nil && !errors.Is(err, netns.ErrPermission) {
		t.Fatal(err)
	}
	var all []uint32
	for _, ns := range list {
		all = append(all, ns.Inode())
		_ = ns.Close()
	}
	return all
}

// isTimeout reports whether err is a deadline and not something the network said.
func isTimeout(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, syscall.ETIMEDOUT)
}
