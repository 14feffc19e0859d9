// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
)

// fast are the options of loadertest.Fast.
var fast = conn.Options{KeepAlive: true, Idle: time.Second, Interval: time.Second, Count: 2, UserTimeout: 3 * time.Second}

// slow are those of the policies below.
var slow = conn.Options{KeepAlive: true, Idle: 20 * time.Second, Interval: 5 * time.Second, Count: 4, UserTimeout: 45 * time.Second}

// unset is what the kernel reports of a socket that nobody touched.
var unset = conn.Options{Idle: 7200 * time.Second, Interval: 75 * time.Second, Count: 9}

const slowPolicy = `version: 1
defaults:
  user_timeout: 45s
  keepalive: {idle: 20s, interval: 5s, count: 4}
`

// wantOptions compares what getsockopt says, from outside the programs.
func wantOptions(t *testing.T, what string, c *net.TCPConn, want conn.Options) {
	t.Helper()
	if diff := cmp.Diff(want, labtest.Options(t, c)); diff != "" {
		t.Errorf("%s: options (-want +got):\n%s", what, diff)
	}
}

// wantHeld is wantOptions after setsockopt calls. Before Linux 5.15 the options
// other than the one at hand cannot follow, so that only the bound itself is
// held: no option looser than the policy's, and room for lost probes.
func wantHeld(t *testing.T, b *loadertest.Bed, what string, c *net.TCPConn, want conn.Options) {
	t.Helper()
	if loadertest.Has(t, b.Programs, kernel.Hold) {
		wantOptions(t, what, c, want)
		return
	}
	got := labtest.Options(t, c)
	if !got.KeepAlive || got.Idle > slow.Idle || got.Interval > slow.Interval || got.Count > slow.Count ||
		got.UserTimeout <= 0 || got.UserTimeout > slow.UserTimeout ||
		got.UserTimeout < got.Idle+time.Duration(max(got.Count, 3))*got.Interval {
		t.Errorf("%s: options %+v are not held by %+v", what, got, slow)
	}
}

func TestOptionsOnBothEnds(t *testing.T) {
	b := loadertest.New(t, `version: 1
defaults: {user_timeout: 45s, keepalive: {idle: 20s, interval: 5s, count: 4}}
peers:
  - name: server
    cidrs: [10.91.2.0/24, "fd91:0:0:2::/64"]
    direction: outbound
  - name: client
    cidrs: [10.91.1.0/24, "fd91:0:0:1::/64"]
    direction: inbound
`)
	v4, v6 := netip.AddrPortFrom(b.ServerAddr4, 0), netip.AddrPortFrom(b.ServerAddr6, 0)
	any6 := netip.AddrPortFrom(netip.IPv6Unspecified(), 0)
	for _, test := range []struct {
		name   string
		dialer labtest.Dialer
		listen netip.AddrPort
		dial   netip.Addr
	}{
		{"IPv4", labtest.Dialer{NS: b.Client}, v4, b.ServerAddr4},
		{"IPv6", labtest.Dialer{NS: b.Client}, v6, b.ServerAddr6},
		{"mapped client", labtest.Dialer{NS: b.Client, Mapped: true}, v4, b.ServerAddr4},
		{"mapped server", labtest.Dialer{NS: b.Client}, any6, b.ServerAddr4},
		{"Go's keepalive", labtest.Dialer{NS: b.Client, KeepAlive: true}, v4, b.ServerAddr4},
	} {
		t.Run(test.name, func(t *testing.T) {
			ln := labtest.Listen(t, b.Server, test.listen)
			client := test.dialer.Dial(t, netip.AddrPortFrom(test.dial, labtest.Addr(ln.Addr()).Port()))
			server := labtest.Accept(t, ln)
			want := slow
			if test.dialer.KeepAlive { // 15 s, 15 s, 9: the idle time is tighter
				want.Idle = 15 * time.Second
			}
			wantOptions(t, "client", client, want)
			wantOptions(t, "server", server, slow)
		})
	}
}

func TestRulesOfPortAndDirection(t *testing.T) {
	b := loadertest.New(t, slowPolicy+`
peers:
  - name: out
    cidrs: [10.91.2.0/24]
    ports: [7100-7199]
    direction: outbound
  - name: in
    cidrs: [10.91.1.0/24]
    ports: [7100, 7300]
    direction: inbound
`)
	for _, test := range []struct {
		port           uint16
		client, server conn.Options
	}{
		{7099, unset, unset},
		{7100, slow, slow},
		{7199, slow, unset},
		{7200, unset, unset},
		{7300, unset, slow},
	} {
		client, server := labtest.Pair(t, b.Lab, test.port)
		wantOptions(t, fmt.Sprintf("client to port %d", test.port), client, test.client)
		wantOptions(t, fmt.Sprintf("server on port %d", test.port), server, test.server)
	}
}

func TestExceptAndSpecificity(t *testing.T) {
	b := loadertest.New(t, `version: 1
peers:
  - name: wide
    cidrs: [10.91.0.0/16]
    except: [10.91.2.2/32]
    user_timeout: 45s
    keepalive: {idle: 20s, interval: 5s, count: 4}
  - name: narrow
    cidrs: [10.91.3.0/24]
    user_timeout: 3s
    keepalive: {idle: 1s, interval: 1s, count: 2}
`)
	ends := func(host int) (client, server *net.TCPConn) {
		return labtest.PairTo(t, labtest.Dialer{NS: b.Client}, b.Servers[host].NS, netip.AddrPortFrom(b.Servers[host].Addr4, 0))
	}
	client, server := ends(0)
	wantOptions(t, "client to the excepted server", client, unset)
	wantOptions(t, "excepted server's own end", server, slow) // its peer is the client
	client, _ = ends(1)
	wantOptions(t, "client to the narrow prefix", client, fast)
}
