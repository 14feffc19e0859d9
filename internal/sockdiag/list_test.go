// SPDX-License-Identifier: Apache-2.0

package sockdiag_test

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"testing"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/sockdiag"
	"golang.org/x/sys/unix"
)

func list(t testing.TB, diag *sockdiag.Conn, f sockdiag.Filter) map[conn.ID]sockdiag.Socket {
	t.Helper()
	all := make(map[conn.ID]sockdiag.Socket)
	err := diag.List(f, func(s sockdiag.Socket) error {
		if _, twice := all[s.ID]; twice {
			t.Errorf("twice: %s", s.ID)
		}
		all[s.ID] = s
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestListFilters(t *testing.T) {
	labtest.NoLeak(t)
	l := labtest.New(t, lab.Options{})
	diag := dial(t, l.Client)
	ids := make(map[string]conn.ID)
	for name, way := range ways(l) {
		client, _ := labtest.PairTo(t, way.dialer, l.Server, way.server)
		ids[name] = labtest.ID(t, l.Client, client)
	}
	ln := labtest.Listen(t, l.Client, netip.MustParseAddrPort("127.0.0.1:7200"))

	for name, c := range map[string]struct {
		filter sockdiag.Filter
		want   []string
	}{
		"established": {sockdiag.Filter{States: sockdiag.States(conn.Established)}, []string{"v4", "v6", "mapped"}},
		"v4":          {sockdiag.Filter{States: sockdiag.States(conn.Established), Family: unix.AF_INET}, []string{"v4"}},
		"v6":          {sockdiag.Filter{States: sockdiag.States(conn.Established), Family: unix.AF_INET6}, []string{"v6", "mapped"}},
		"remote port": {sockdiag.Filter{RemotePort: ids["v6"].Remote.Port(), Info: true}, []string{"v6"}},
		"local port":  {sockdiag.Filter{LocalPort: ids["mapped"].Local.Port()}, []string{"mapped"}},
		"no state":    {sockdiag.Filter{States: sockdiag.States(conn.Closing)}, nil},
	} {
		got := list(t, diag, c.filter)
		for _, want := range c.want {
			s, ok := got[ids[want]]
			if !ok {
				t.Errorf("%s: %s is missing", name, want)
			} else if (s.TCPInfo != nil) != c.filter.Info {
				t.Errorf("%s: tcp_info %+v", name, s.TCPInfo)
			}
		}
		if len(got) != len(c.want) {
			t.Errorf("%s: %d sockets, want %d: %v", name, len(got), len(c.want), got)
		}
	}

	all := list(t, diag, sockdiag.Filter{})
	found := false
	for id, s := range all {
		found = found || s.State == conn.Listen && id.Local == labtest.Addr(ln.Addr()) && id.Cookie == labtest.Cookie(t, ln)
	}
	if !found || len(all) != 4 {
		t.Errorf("all: %d sockets, listener: %v; want 4 with it: %v", len(all), found, all)
	}
}

// A caller that stops leaves the connection as good as new.
func TestListStopsAtItsCallersError(t *testing.T) {
	labtest.NoLeak(t)
	ns := labtest.Netns(t)
	diag := dial(t, ns)
	ln := labtest.Listen(t, ns, netip.MustParseAddrPort("127.0.0.1:7200"))
	const pairs = 300 // more than one datagram holds
	var one conn.ID
	for range pairs {
		one = labtest.ID(t, ns, labtest.Dial(t, ns, netip.AddrPort{}, labtest.Addr(ln.Addr())))
	}
	boom := errors.New("boom")
	calls := 0
	err := diag.List(sockdiag.Filter{}, func(sockdiag.Socket) error { calls++; return boom })
	if !errors.Is(err, boom) || calls != 1 {
		t.Errorf("%v after %d calls, want the caller's error after one", err, calls)
	}
	if s, err := diag.Get(one); err != nil || s.ID != one {
		t.Errorf("afterwards: %+v, %v", s.ID, err)
	}
	if got := list(t, diag, sockdiag.Filter{RemotePort: 7200}); len(got) != pairs {
		t.Errorf("%d sockets, want %d", len(got), pairs)
	}
}

func TestManyGoroutines(t *testing.T) {
	labtest.NoLeak(t)
	l := labtest.New(t, lab.Options{})
	diag := dial(t, l.Client)
	var clients []*net.TCPConn
	for range 4 {
		c, _ := labtest.Pair(t, l, 0)
		clients = append(clients, c)
	}
	var wg sync.WaitGroup
	for _, c := range clients {
		id := labtest.ID(t, l.Client, c)
		wg.Go(func() {
			for range 50 {
				if s, err := diag.Get(id); err != nil || s.ID != id {
					t.Errorf("get: %+v, %v", s.ID, err)
				}
				n := 0
				if err := diag.List(sockdiag.Filter{}, func(sockdiag.Socket) error { n++; return nil }); err != nil || n != len(clients) {
					t.Errorf("list: %d sockets, %v", n, err)
				}
			}
		})
	}
	wg.Wait()
}

func TestDialOwnNamespace(t *testing.T) {
	labtest.NoLeak(t)
	own, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	if diag := dial(t, nil); diag.Netns() != own.Inode() {
		t.Errorf("namespace %d, want %d", diag.Netns(), own.Inode())
	}
}

func BenchmarkGet(b *testing.B) {
	l := labtest.New(b, lab.Options{})
	client, _ := labtest.Pair(b, l, 0)
	id, diag := labtest.ID(b, l.Client, client), dial(b, l.Client)
	for b.Loop() {
		if _, err := diag.Get(id); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkList(b *testing.B) {
	ns := labtest.Netns(b)
	diag := dial(b, ns)
	ln := labtest.Listen(b, ns, netip.MustParseAddrPort("127.0.0.1:7200"))
	for range 1000 {
		labtest.Dial(b, ns, netip.AddrPort{}, labtest.Addr(ln.Addr()))
	}
	n := 0
	for b.Loop() {
		if err := diag.List(sockdiag.Filter{Info: true}, func(sockdiag.Socket) error { n++; return nil }); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/socket")
}
