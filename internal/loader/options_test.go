// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

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

// TestOutsideUntouched compares every option that getsockopt has, raw, between
// a connection to a peer outside the policy and one made before the programs
// were attached.
func TestOutsideUntouched(t *testing.T) {
	b := loadertest.New(t, slowPolicy+`
peers: [{name: elsewhere, cidrs: [192.0.2.0/24]}]
`)
	client, server := labtest.Pair(t, b.Lab, 0)
	if err := b.Cgroup.Leave(); err != nil {
		t.Fatal(err)
	}
	plainClient, plainServer := labtest.Pair(t, b.Lab, 0)
	if err := b.Cgroup.Enter(); err != nil {
		t.Fatal(err)
	}
	compareOptions(t, "client", client, plainClient)
	compareOptions(t, "server", server, plainServer)
	// The comparison must be able to fail.
	labtest.Setsockopt(t, client, unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 7)
	if raw(t, client, unix.IPPROTO_TCP, unix.TCP_KEEPCNT) == raw(t, plainClient, unix.IPPROTO_TCP, unix.TCP_KEEPCNT) {
		t.Error("a changed option goes unseen")
	}
}

func compareOptions(t *testing.T, what string, a, b *net.TCPConn) {
	t.Helper()
	volatile := map[[2]int]bool{
		{unix.IPPROTO_TCP, unix.TCP_INFO}: true, {unix.IPPROTO_TCP, unix.TCP_CC_INFO}: true,
		{unix.IPPROTO_TCP, unix.TCP_TIMESTAMP}: true, {unix.SOL_SOCKET, unix.SO_COOKIE}: true,
		{unix.SOL_SOCKET, unix.SO_INCOMING_CPU}: true, {unix.SOL_SOCKET, unix.SO_MEMINFO}: true,
		{unix.IPPROTO_TCP, unix.TCP_ZEROCOPY_RECEIVE}: true, {unix.SOL_SOCKET, unix.SO_PEERNAME}: true,
		{unix.IPPROTO_TCP, unix.TCP_ULP}: true,
		{unix.IPPROTO_IP, 52}:            true, // IP_PROTOCOL, the local port of a TCP socket
	}
	n := 0
	for _, level := range []int{unix.SOL_SOCKET, unix.IPPROTO_TCP, unix.IPPROTO_IP} {
		for option := 1; option < 90; option++ {
			if volatile[[2]int{level, option}] {
				continue
			}
			got, want := raw(t, a, level, option), raw(t, b, level, option)
			if got != want {
				t.Errorf("%s: level %d option %d: %s, without the programs %s", what, level, option, got, want)
			}
			if len(got) > 0 && got[0] != 'e' {
				n++
			}
		}
	}
	if n < 40 {
		t.Errorf("%s: only %d options could be compared", what, n)
	}
}

// raw returns an option's bytes in hexadecimal, or the errno.
func raw(t *testing.T, c *net.TCPConn, level, option int) string {
	t.Helper()
	var out string
	labtest.Control(t, c, func(fd int) error {
		buf := make([]byte, 256)
		size := uint32(len(buf))
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
			uintptr(unsafe.Pointer(&buf[0])), uintptr(unsafe.Pointer(&size)), 0)
		out = hex.EncodeToString(buf[:min(int(size), len(buf))])
		if errno != 0 {
			out = "errno " + errno.Error()
		}
		return nil
	})
	return out
}

// TestTampering: what an application sets after connect is held at the bound,
// and what it sets tighter stays.
func TestTampering(t *testing.T) {
	b := loadertest.New(t, slowPolicy+`
peers: [{name: server, cidrs: [10.91.2.0/24]}]
`)
	type set struct{ level, option, value int }
	keepalive := func(v int) set { return set{unix.SOL_SOCKET, unix.SO_KEEPALIVE, v} }
	idle := func(v int) set { return set{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, v} }
	interval := func(v int) set { return set{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, v} }
	count := func(v int) set { return set{unix.IPPROTO_TCP, unix.TCP_KEEPCNT, v} }
	timeout := func(ms int) set { return set{unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, ms} }
	opts := func(idle, interval, count, timeout int) conn.Options {
		return conn.Options{KeepAlive: true, Idle: time.Duration(idle) * time.Second,
			Interval: time.Duration(interval) * time.Second, Count: count,
			UserTimeout: time.Duration(timeout) * time.Millisecond}
	}
	for _, test := range []struct {
		name string
		sets []set
		want conn.Options
	}{
		{"looser", []set{idle(7200), interval(75), count(9), timeout(0), keepalive(0)}, slow},
		{"much looser timeout", []set{timeout(900_000)}, slow},
		{"tighter idle", []set{idle(2)}, opts(2, 5, 4, 45_000)},
		{"tighter, then looser again", []set{idle(2), idle(600)}, slow},
		// 30 s < 20 + 4 x 5: idle and interval shrink by 30/40.
		{"tighter timeout", []set{timeout(30_000)}, opts(15, 3, 4, 30_000)},
		// Nothing above one second is left to shrink: 1 + 4 x 1 s it is.
		{"timeout too tight", []set{timeout(1)}, opts(1, 1, 4, 5_000)},
		// One probe would be no probe to lose: room for three is kept.
		{"one probe only", []set{idle(1), interval(1), count(1), timeout(1100)}, opts(1, 1, 1, 4_000)},
		{"timeout back to none", []set{timeout(30_000), timeout(0)}, slow},
	} {
		t.Run(test.name, func(t *testing.T) {
			client, _ := labtest.Pair(t, b.Lab, 0)
			for _, s := range test.sets {
				labtest.Setsockopt(t, client, s.level, s.option, s.value)
			}
			wantHeld(t, b, "after", client, test.want)
			// The same wishes before connect have the same result.
			d := labtest.Dialer{NS: b.Client, Setup: func(fd int) error {
				var errs []error
				for _, s := range test.sets {
					errs = append(errs, unix.SetsockoptInt(fd, s.level, s.option, s.value))
				}
				return errors.Join(errs...)
			}}
			client, _ = labtest.PairTo(t, d, b.Server, netip.AddrPortFrom(b.ServerAddr4, 0))
			wantOptions(t, "before connect", client, test.want)
		})
	}
	if _, err := b.Programs.Counters(); err != nil {
		t.Error(err)
	}
	c := mustCounters(t, b.Programs, "server")
	if c.OverrideHeld == 0 || c.OverrideKept == 0 || c.OverrideRaised == 0 {
		t.Errorf("held %d, kept %d, raised %d: none may be 0", c.OverrideHeld, c.OverrideKept, c.OverrideRaised)
	}
	wantNoFaults(t, b.Programs)
}

// TestReusedSocket: a socket that is disconnected and connected to a peer that
// no policy names carries nothing of ours any more.
func TestReusedSocket(t *testing.T) {
	b := loadertest.New(t, slowPolicy+`
peers: [{name: server, cidrs: [10.91.2.0/24]}]
`)
	client, _ := labtest.Pair(t, b.Lab, 0)
	other := labtest.Listen(t, b.Servers[1].NS, netip.AddrPortFrom(b.Servers[1].Addr4, 0))
	labtest.Control(t, client, func(fd int) error {
		unspec := unix.RawSockaddr{Family: unix.AF_UNSPEC}
		if _, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&unspec)), unsafe.Sizeof(unspec)); errno != 0 {
			return errno
		}
		unix.SetNonblock(fd, false)
		defer unix.SetNonblock(fd, true)
		to := labtest.Addr(other.Addr())
		return unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())})
	})
	labtest.Setsockopt(t, client, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 900_000)
	if got := labtest.Options(t, client).UserTimeout; got != 900*time.Second {
		t.Errorf("user timeout %v, want the application's 900s", got)
	}
	c := mustCounters(t, b.Programs, "server")
	if c.OpenedOutbound != 1 || c.Open() != 0 {
		t.Errorf("counters %+v, want 1 opened and none open", c)
	}
}

// TestFlowLabelManager: an option that the kernel writes back through keeps
// working (IPV6_FLOWLABEL_MGR).
func TestFlowLabelManager(t *testing.T) {
	b := loadertest.New(t, loadertest.Fast)
	client, _ := labtest.PairTo(t, labtest.Dialer{NS: b.Client}, b.Server, netip.AddrPortFrom(b.ServerAddr6, 0))
	if flowLabel(t, client, b.ServerAddr6) == 0 {
		t.Error("no label was written back")
	}
}

// flowLabel asks the kernel to choose a label and returns what it writes back.
func flowLabel(t *testing.T, c *net.TCPConn, dst netip.Addr) uint32 {
	t.Helper()
	var label uint32
	labtest.Control(t, c, func(fd int) error {
		req := make([]byte, 32) // struct in6_flowlabel_req
		addr := dst.As16()
		copy(req, addr[:])
		req[21], req[22] = 255, 1                                                             // IPV6_FL_S_ANY, IPV6_FL_F_CREATE
		_, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.IPPROTO_IPV6, 32, /* IPV6_FLOWLABEL_MGR */
			uintptr(unsafe.Pointer(&req[0])), uintptr(len(req)), 0)
		label = binary.BigEndian.Uint32(req[16:20])
		if errno != 0 {
			return errno
		}
		return nil
	})
	return label
}

// TestTightenOracle: any wish, before or after connect, ends as the documented
// rule says.
func TestTightenOracle(t *testing.T) {
	b := loadertest.New(t, slowPolicy+`
peers: [{name: server, cidrs: [10.91.2.0/24]}]
`)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	ln := labtest.Listen(t, b.Server, netip.AddrPortFrom(b.ServerAddr4, 0))
	for range 200 {
		app := conn.Options{
			Idle: time.Duration(1+r.IntN(40)) * time.Second, Interval: time.Duration(1+r.IntN(12)) * time.Second,
			Count: 1 + r.IntN(12), UserTimeout: time.Duration(r.IntN(100_000)) * time.Millisecond,
		}
		client := labtest.Dial(t, b.Client, netip.AddrPort{}, labtest.Addr(ln.Addr()))
		for _, i := range r.Perm(4) {
			switch i {
			case 0:
				labtest.Setsockopt(t, client, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, int(app.Idle/time.Second))
			case 1:
				labtest.Setsockopt(t, client, unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, int(app.Interval/time.Second))
			case 2:
				labtest.Setsockopt(t, client, unix.IPPROTO_TCP, unix.TCP_KEEPCNT, app.Count)
			case 3:
				labtest.Setsockopt(t, client, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(app.UserTimeout/time.Millisecond))
			}
		}
		want := tighten(slow, app)
		wantHeld(t, b, fmt.Sprintf("wish %+v", app), client, want)
		got := labtest.Options(t, client)
		if room := max(got.Count, 3); got.UserTimeout < got.Idle+time.Duration(room)*got.Interval {
			t.Errorf("wish %+v: result %+v kills for few lost probes", app, got)
		}
		client.Close()
	}
}

// tighten is the rule of docs/policy.md, written down a second time.
func tighten(p, app conn.Options) conn.Options {
	smaller := func(p, a time.Duration) time.Duration {
		if a > 0 && a < p {
			return a
		}
		return p
	}
	out := conn.Options{KeepAlive: true, Idle: smaller(p.Idle, app.Idle), Interval: smaller(p.Interval, app.Interval),
		Count: p.Count, UserTimeout: smaller(p.UserTimeout, app.UserTimeout)}
	if app.Count > 0 {
		out.Count = min(p.Count, app.Count)
	}
	room := max(out.Count, min(p.Count, 3))
	need := func() time.Duration { return out.Idle + time.Duration(room)*out.Interval }
	if n := need(); out.UserTimeout < n {
		shrink := func(d time.Duration) time.Duration {
			ms, num, den := d.Milliseconds()/1000, out.UserTimeout.Milliseconds(), n.Milliseconds()
			return max(time.Duration(ms*num/den), 1) * time.Second
		}
		out.Idle, out.Interval = shrink(out.Idle), shrink(out.Interval)
	}
	out.UserTimeout = max(out.UserTimeout, need())
	return out
}

// TestInvalidValuesStayTheApplications: the kernel answers them as ever, and
// options of other kinds and any size pass unseen.
func TestInvalidValuesStayTheApplications(t *testing.T) {
	b := loadertest.New(t, slowPolicy+`
peers: [{name: server, cidrs: [10.91.2.0/24]}]
`)
	client, _ := labtest.Pair(t, b.Lab, 0)
	for _, bad := range []struct{ option, value int }{
		{unix.TCP_KEEPIDLE, 0}, {unix.TCP_KEEPIDLE, 32768}, {unix.TCP_KEEPINTVL, -1},
		{unix.TCP_KEEPCNT, 0}, {unix.TCP_KEEPCNT, 128}, {unix.TCP_USER_TIMEOUT, -1},
	} {
		labtest.Control(t, client, func(fd int) error {
			if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, bad.option, bad.value); err != unix.EINVAL {
				t.Errorf("option %d = %d: %v, want EINVAL", bad.option, bad.value, err)
			}
			return nil
		})
	}
	wantOptions(t, "after refused values", client, slow)
	labtest.Control(t, client, func(fd int) error {
		// An option longer than a page: the kernel wants 4 bytes and takes any more.
		long := bytes.Repeat([]byte{0}, 5000)
		long[0] = 1
		if err := unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, string(long)); err != nil {
			t.Errorf("option of 5,000 bytes: %v", err)
		}
		if err := unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, "ab"); err != unix.EINVAL {
			t.Errorf("option of 2 bytes: %v, want EINVAL", err)
		}
		return nil
	})
	wantOptions(t, "after odd sizes", client, slow)
	labtest.Control(t, client, func(fd int) error {
		// Our options are held at any length.
		for _, o := range []struct{ level, option int }{{unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT}, {unix.SOL_SOCKET, unix.SO_KEEPALIVE}} {
			if err := unix.SetsockoptString(fd, o.level, o.option, string(make([]byte, 5000))); err != nil {
				t.Errorf("option %d of 5,000 bytes: %v", o.option, err)
			}
		}
		return nil
	})
	wantOptions(t, "after 5,000 zero bytes", client, slow)
	if got := labtest.Getsockopt(t, client, unix.IPPROTO_TCP, unix.TCP_NODELAY); got != 1 {
		t.Errorf("TCP_NODELAY is %d after the long option, want 1", got)
	}
	wantNoFaults(t, b.Programs)
}

// TestEnforce: the policy's values stand, whatever the application asks, tighter
// values too.
func TestEnforce(t *testing.T) {
	b := loadertest.New(t, slowPolicy+`
peers: [{name: server, cidrs: [10.91.2.0/24], app_override: enforce}]
`)
	early := labtest.Dialer{NS: b.Client, Setup: func(fd int) error {
		return errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 2),
			unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 900_000))
	}}
	client, _ := labtest.PairTo(t, early, b.Server, netip.AddrPortFrom(b.ServerAddr4, 0))
	wantOptions(t, "before connect", client, slow)
	for _, s := range []struct{ level, option, value int }{
		{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 2}, {unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 300},
		{unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 1}, {unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 1},
		{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 0},
	} {
		labtest.Setsockopt(t, client, s.level, s.option, s.value)
		wantOptions(t, fmt.Sprintf("after option %d = %d", s.option, s.value), client, slow)
	}
	if c := mustCounters(t, b.Programs, "server"); c.OverrideHeld != 5 || c.OverrideKept != 0 || c.OverrideRaised != 0 {
		t.Errorf("counters %+v, want 5 held", c)
	}
	wantNoFaults(t, b.Programs)
}

// TestAllow: what the application sets stands, the policy fills the rest, and
// what is looser is counted.
func TestAllow(t *testing.T) {
	b := loadertest.New(t, slowPolicy+`
peers: [{name: server, cidrs: [10.91.2.0/24], app_override: allow}]
`)
	early := labtest.Dialer{NS: b.Client, Setup: func(fd int) error {
		return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 600)
	}}
	client, _ := labtest.PairTo(t, early, b.Server, netip.AddrPortFrom(b.ServerAddr4, 0))
	want := slow
	want.Idle = 600 * time.Second
	wantOptions(t, "before connect", client, want)
	for _, s := range []struct {
		level, option, value int
		change               func(*conn.Options)
	}{
		{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 2, func(o *conn.Options) { o.Idle = 2 * time.Second }},
		{unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 1100, func(o *conn.Options) { o.UserTimeout = 1100 * time.Millisecond }},
		{unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 0, func(o *conn.Options) { o.UserTimeout = 0 }},
		{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 0, func(o *conn.Options) { o.KeepAlive = false }},
	} {
		labtest.Setsockopt(t, client, s.level, s.option, s.value)
		s.change(&want)
		wantOptions(t, fmt.Sprintf("after option %d = %d", s.option, s.value), client, want)
	}
	c := mustCounters(t, b.Programs, "server")
	if c.OverrideAllowed != 3 || c.OverrideKept != 1 || c.OverrideHeld != 0 || c.OverrideRaised != 0 {
		t.Errorf("counters %+v, want 3 allowed (a timeout that forgives nothing, none, no keepalive), 1 kept", c)
	}
	wantNoFaults(t, b.Programs)
}
