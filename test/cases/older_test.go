// SPDX-License-Identifier: Apache-2.0

package cases

import (
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
)

// The services of the lab's servers.
const (
	outPort  = 7100 // connections to it are bounded
	slowPort = 7101 // so are these; nobody reads what comes
	inPort   = 7200 // connections from the client are bounded
	freePort = 7300 // no policy names these
)

// olderPolicy bounds one end of each connection, so that the other's segments
// without payload are answers.
const olderPolicy = `version: 1
peers:
  - {name: out, cidrs: [10.91.0.0/16, "fd91::/48"], ports: [7100-7101], direction: outbound}
  - {name: in, cidrs: [10.91.1.0/24, "fd91:0:0:1::/64"], ports: [7200], direction: inbound}
`

// pace is how many keepalives a second a node may set off, and burst how many at
// one moment.
const pace, burst = 5000, 500

// wishes are what applications set, and what each gets under the policy; zero
// where several answers are right.
var wishes = []struct{ asks, gets conn.Options }{
	{conn.Options{}, policed},
	{conn.Options{KeepAlive: true, Idle: 15 * time.Second, Interval: 15 * time.Second, Count: 9}, policed}, // Go's own
	{
		conn.Options{KeepAlive: true, Idle: time.Minute, Interval: 10 * time.Second, Count: 3, UserTimeout: 10 * time.Minute},
		conn.Options{KeepAlive: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3, UserTimeout: 15 * time.Second},
	},
	{conn.Options{UserTimeout: 12 * time.Second}, conn.Options{}},
	{
		conn.Options{KeepAlive: true, Idle: 4 * time.Second, Interval: time.Second, Count: 5, UserTimeout: 9 * time.Second},
		conn.Options{KeepAlive: true, Idle: 4 * time.Second, Interval: time.Second, Count: 5, UserTimeout: 9 * time.Second},
	},
}

// older is connections that are older than the agent.
type older struct {
	*node
	client  *holder
	servers []*holder
	bounded int // how many the policy names
	slow    int // among them, whose peers take no more
	free    int // and those beside
	drained int // bytes
}

// TestOlder: connections from before the agent's start, in five namespaces, of
// every family and both directions, whatever their applications had set: recorded
// at once, bounded at the pace, without the loss of one, also where every third
// answer to a keepalive is lost and a peer takes no more for the time being. Those
// that no policy names are untouched, and all have back what their applications
// asked for when the programs are taken off.
func TestOlder(t *testing.T) {
	needAdopt(t)
	labtest.NeedIPv6(t)
	o := &older{node: newNode(t, 4, olderPolicy)}
	o.open(t)
	await(t, 6*time.Second)

	t.Run("healthy path", func(t *testing.T) {
		a := o.launch(t, os.Getenv(program))
		paced := o.newPaced(t)
		a.await(t)
		o.wantRecorded(t, a)
		o.wantBounded(t, paced)
		o.wantOptions(t)
		o.wantListed(t)
		o.wantHealthy(t)
		a.stop(t)
		o.output(t, o.ns, "detach", "--restore", "--yes", "--bpffs", o.bpffs)
		o.wantRestored(t)
	})
	await(t, 6*time.Second)
	t.Run("answers lost", func(t *testing.T) {
		lossy := o.newLossy(t, outPort, slowPort, inPort)
		a := o.start(t)
		o.wantRecorded(t, a)
		o.wantBounded(t, nil)
		await(t, policed.UserTimeout+5*time.Second) // longer than any of them may be silent
		if lost := lossy.packets(t); lost < uint64(o.bounded) {
			t.Errorf("only %d answers were lost", lost)
		}
		o.wantOptions(t)
		lossy.heal(t)
		o.wantCarry(t)
		o.wantShutAgain(t)
		o.wantHealthy(t)
		a.stop(t)
	})
}

// open opens them.
func (o *older) open(t *testing.T) {
	n := labtest.Fewer(10_000)
	o.slow, o.free = max(n/500, 4), max(n/50, 8)
	var asks []conn.Options
	for _, w := range wishes {
		asks = append(asks, w.asks)
	}
	o.client = o.newHolder(t, o.Client)
	for _, s := range o.Servers {
		h := o.newHolder(t, s.NS)
		o.servers = append(o.servers, h)
		own := o.slow / len(o.Servers)
		o.serve(t, h, s, slowPort, asks[:1], map[string]int{"4": own - own/2, "6": own / 2})
		each := (n/len(o.Servers) - own + 5) / 6
		o.serve(t, h, s, outPort, asks, map[string]int{"4": each, "6": each, "mapped": each})
		o.serve(t, h, s, inPort, asks, map[string]int{"4": each, "6": each, "to mapped": each})
		o.serve(t, h, s, freePort, asks, map[string]int{"4": o.free / 8, "6": o.free / 8})
		o.bounded += own + 6*each
	}
	o.slow = o.slow / len(o.Servers) * len(o.Servers)
	call[int](t, o.client, "Fill", slowPort)
	labtest.Eventually(t, late, func() bool { return o.blocked(t) == o.slow }, "the windows shut")
	t.Logf("%d connections, among them %d whose peers take no more", o.bounded, o.slow)
}

// serve opens connections to a port of a server, by their family: from a
// mapped socket, and to one.
func (o *older) serve(t *testing.T, h *holder, s lab.Host, port uint16, asks []conn.Options, families map[string]int) {
	t.Helper()
	// Nobody but the end that is bounded has set anything.
	near, far := asks, []conn.Options{{}}
	if port == inPort {
		near, far = far, near
	}
	v4, v6, both := netip.AddrPortFrom(s.Addr4, port), netip.AddrPortFrom(s.Addr6, port), netip.AddrPortFrom(netip.IPv6Unspecified(), port)
	if families["to mapped"] > 0 {
		call[int](t, h, "Listen", Listening{Addr: both, Wishes: far})
	} else {
		call[int](t, h, "Listen", Listening{Addr: v4, Wishes: far})
		call[int](t, h, "Listen", Listening{Addr: v6, Wishes: far})
	}
	for family, n := range families {
		to := v4
		if family == "6" {
			to = v6
		}
		call[int](t, o.client, "Dial", Dialing{To: to, Mapped: family == "mapped", N: n, Wishes: near})
	}
}

// ends are all connections from the side that the policy bounds, and the others.
func (o *older) ends(t *testing.T) (bounded, others []Seen) {
	t.Helper()
	for _, s := range o.client.see(t) {
		if s.Port == outPort || s.Port == slowPort {
			bounded = append(bounded, s)
		} else {
			others = append(others, s)
		}
	}
	for _, h := range o.servers {
		for _, s := range h.see(t) {
			if s.Port == inPort {
				bounded = append(bounded, s)
			} else {
				others = append(others, s)
			}
		}
	}
	if len(bounded) != o.bounded || len(others) < o.bounded+o.free {
		t.Fatalf("%d and %d ends of connections, want %d and as many", len(bounded), len(others), o.bounded)
	}
	return bounded, others
}

// blocked counts the connections whose peers take no more.
func (o *older) blocked(t *testing.T) (n int) {
	t.Helper()
	for _, s := range o.client.see(t) {
		if s.Port == slowPort && s.Blocked {
			n++
		}
	}
	return n
}

// await lets time pass.
func await(t *testing.T, d time.Duration) {
	t.Helper()
	time.Sleep(d)
}
