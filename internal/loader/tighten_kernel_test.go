// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
)

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
