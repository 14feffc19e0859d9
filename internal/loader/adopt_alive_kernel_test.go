// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
)

// quick is what the tests below give: idle bound 5 s, four probes forgiven.
const quickPolicy = `version: 1
defaults: {user_timeout: 5s, keepalive: {idle: 1s, interval: 1s, count: 4}}
peers: [{name: server, cidrs: [10.91.2.0/24]}]
`

var quick = conn.Options{KeepAlive: true, Idle: time.Second, Interval: time.Second, Count: 4, UserTimeout: 5 * time.Second}

// forgivingPolicy is as quick and forgives eight, so that there is time to mend a path of which
// two are lost: idle bound 9 s.
const forgivingPolicy = `version: 1
defaults: {user_timeout: 9s, keepalive: {idle: 1s, interval: 1s, count: 8}}
peers: [{name: server, cidrs: [10.91.2.0/24]}]
`

var forgiving = conn.Options{KeepAlive: true, Idle: time.Second, Interval: time.Second, Count: 8, UserTimeout: 9 * time.Second}

// TestAdoptLostProbe: the path is well, and the first keepalive on connections that
// were silent for longer than the new bound is lost. None may die of it
// (kernel-facts T15), whatever its application had set.
func TestAdoptLostProbe(t *testing.T) {
	a := newAdoption(t, slowPolicy+`
peers: [{name: server, cidrs: [10.91.2.0/24], ports: [7100]}]
`)
	set := func(option, value int) func(int) error {
		return func(fd int) error { return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, option, value) }
	}
	on := func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1) }
	var clients, servers []*net.TCPConn
	for _, setup := range []func(int) error{
		nil, on, set(unix.TCP_USER_TIMEOUT, 9500), set(unix.TCP_USER_TIMEOUT, 2000),
		func(fd int) error { return errors.Join(on(fd), set(unix.TCP_USER_TIMEOUT, 9000)(fd)) },
	} {
		client, server := labtest.PairTo(t, labtest.Dialer{NS: a.Client, Setup: setup}, a.Server, netip.AddrPortFrom(a.ServerAddr4, 0))
		clients, servers = append(clients, client), append(servers, server)
	}
	// And one that had longer ones by the policy before.
	client, server := labtest.Pair(t, a.Lab, 7100)
	clients, servers = append(clients, client), append(servers, server)
	a.settle(t, a.Client)
	wantOptions(t, "by the policy before", client, slow)
	a.setPolicy(t, forgivingPolicy)
	for _, c := range clients {
		a.silent(t, a.Client, c, 10*time.Second)
	}
	drop := labtest.Fault(t)(a.Drop(lab.Match{Src: lab.Only(a.ClientAddr4), Dst: lab.Only(a.ServerAddr4)}))
	for range 2 { // the second must not tighten what is unanswered
		told, stats := a.pass(t, a.Client, plenty)
		for i, c := range clients {
			if one := adopted(t, told, c); one.Wait != loader.WaitPacket && one.Wait != loader.WaitStuck {
				t.Errorf("connection %d: told %+v", i, one)
			}
		}
		if stats.Pending() != uint64(len(clients)) {
			t.Errorf("%d pending", stats.Pending())
		}
	}
	// Two of eight are lost: more than a user timeout would forgive.
	labtest.Eventually(t, late, func() bool { return a.look(t, a.Client, clients[0]).ProbesOut >= 2 }, "two lost probes")
	labtest.Heal(t, drop)
	a.settle(t, a.Client)
	for i, c := range clients {
		what := fmt.Sprintf("connection %d", i)
		wantAlive(t, what, c, servers[i])
		wantOptions(t, what, c, forgiving) // 2 s is too short for eight probes
	}
	wantNoFaults(t, a.Programs)
}

// TestAdoptReleaseLostProbe: the way back to shorter options of the application's
// own costs no connection either.
func TestAdoptReleaseLostProbe(t *testing.T) {
	a := newAdoption(t, slowPolicy+`
peers: [{name: server, cidrs: [10.91.2.0/24], app_override: enforce}]
`)
	d := labtest.Dialer{NS: a.Client, Setup: func(fd int) error {
		set := func(option, value int) error { return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, option, value) }
		return errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1), set(unix.TCP_KEEPIDLE, 1),
			set(unix.TCP_KEEPINTVL, 1), set(unix.TCP_KEEPCNT, 8), set(unix.TCP_USER_TIMEOUT, 9000))
	}}
	client, server := labtest.PairTo(t, d, a.Server, netip.AddrPortFrom(a.ServerAddr4, 0))
	a.settle(t, a.Client)
	wantOptions(t, "enforced", client, slow)
	a.silent(t, a.Client, client, 10*time.Second)
	drop := labtest.Fault(t)(a.Drop(lab.Match{Src: lab.Only(a.ClientAddr4), Dst: lab.Only(a.ServerAddr4)}))
	a.setPolicy(t, `version: 1
peers: [{name: server, cidrs: [192.0.2.0/24]}]
`)
	for range 2 {
		told, _ := a.pass(t, a.Client, plenty)
		if one := adopted(t, told, client); one.Outcome == loader.Released || one.Wait == loader.WaitNone {
			t.Errorf("told %+v", one)
		}
	}
	if r := a.look(t, a.Client, client).Record; !r.Releasing || !r.Pending {
		t.Errorf("record %+v", r)
	}
	labtest.Eventually(t, late, func() bool { return a.look(t, a.Client, client).ProbesOut >= 2 }, "two lost probes")
	labtest.Heal(t, drop)
	a.settle(t, a.Client)
	wantAlive(t, "released", client, server)
	wantOptions(t, "released", client, forgiving)
	if c := mustCounters(t, a.Programs, "server"); c.Released != 1 || c.Open() != 0 {
		t.Errorf("counters %+v", c)
	}
	wantNoFaults(t, a.Programs)
}

// fill writes until the peer takes no more, and leaves data behind that waits.
func fill(t *testing.T, c *net.TCPConn) {
	t.Helper()
	buf := make([]byte, 1<<20)
	labtest.Eventually(t, time.Minute, func() bool {
		c.SetWriteDeadline(time.Now().Add(time.Second))
		_, err := c.Write(buf)
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
		return err != nil && labtest.TCPInfo(t, c).Notsent_bytes > 0
	}, "a full connection")
	c.SetWriteDeadline(time.Time{})
}

// drain reads what was written until c is heard to be empty.
func drain(t *testing.T, c *net.TCPConn) {
	t.Helper()
	for buf := make([]byte, 1<<20); ; {
		c.SetReadDeadline(time.Now().Add(time.Second))
		if _, err := c.Read(buf); err != nil {
			break
		}
	}
	c.SetReadDeadline(time.Time{})
}

// TestAdoptZeroWindow: a peer that takes no more and answers every window probe
// lives (kernel-facts L1, T15). The user timeout waits until it takes some again,
// also where the application asks for one meanwhile.
func TestAdoptZeroWindow(t *testing.T) {
	b := loadertest.New(t, quickPolicy)
	loadertest.Need(t, b.Programs, kernel.Adopt)
	a := &adoption{Lab: b.Lab, Programs: b.Programs}
	if err := b.Cgroup.Leave(); err != nil {
		t.Fatal(err)
	}
	outside, outsidePeer := labtest.Pair(t, a.Lab, 0)
	if err := b.Cgroup.Enter(); err != nil {
		t.Fatal(err)
	}
	// One that the programs will hold: it is in the cgroup, under no policy at first.
	b.SetPolicy(t, `version: 1
peers: [{name: server, cidrs: [192.0.2.0/24]}]
`)
	inside, insidePeer := labtest.Pair(t, a.Lab, 0)
	b.SetPolicy(t, quickPolicy)
	fill(t, outside)
	fill(t, inside)
	began := time.Now()
	for time.Since(began) < 8*time.Second {
		told, _ := a.pass(t, a.Client, plenty)
		for _, c := range []*net.TCPConn{outside, inside} {
			if one := adopted(t, told, c); one.Wait != loader.WaitWindow {
				t.Fatalf("after %s: told %+v", time.Since(began), one)
			}
			if got := labtest.Options(t, c).UserTimeout; got != 0 {
				t.Fatalf("user timeout %s on a peer without window", got)
			}
		}
		labtest.Setsockopt(t, inside, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 3000)
		time.Sleep(50 * time.Millisecond)
	}
	if !a.look(t, a.Client, inside).Record.Pending {
		t.Error("not pending")
	}
	drain(t, outsidePeer)
	drain(t, insidePeer)
	a.settle(t, a.Client)
	wantAlive(t, "outside the cgroup", outside, outsidePeer)
	wantAlive(t, "inside the cgroup", inside, insidePeer)
	wantOptions(t, "outside the cgroup", outside, quick)
	wantOptions(t, "inside the cgroup", inside, quick) // 3 s is too short for four probes
	if r := a.look(t, a.Client, inside).Record; r.Pending || r.App.UserTimeout != 3*time.Second {
		t.Errorf("record %+v", r)
	}
	wantNoFaults(t, a.Programs)
}

// TestAdoptStuck: where the peer is dead already the user timeout waits, and the
// keepalive ends it; with data in flight nothing changes.
func TestAdoptStuck(t *testing.T) {
	a := newAdoption(t, quickPolicy)
	idle, _ := labtest.Pair(t, a.Lab, 0)
	busy, _ := labtest.Pair(t, a.Lab, 0)
	labtest.Fault(t)(a.Drop(lab.Match{Src: lab.Only(a.ClientAddr4), Dst: lab.Only(a.ServerAddr4)}))
	labtest.Setsockopt(t, busy, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 600_000)
	if _, err := busy.Write([]byte("ping")); err != nil {
		t.Fatal(err)
	}
	a.silent(t, a.Client, idle, 2*time.Second)
	labtest.Eventually(t, late, func() bool { return a.look(t, a.Client, busy).Retransmits > 0 }, "a retransmission")
	told, _ := a.pass(t, a.Client, plenty)
	if one := adopted(t, told, busy); one.Wait != loader.WaitStuck {
		t.Errorf("in flight: told %+v", one)
	}
	if got := labtest.Options(t, busy).UserTimeout; got != 600*time.Second {
		t.Errorf("in flight: user timeout %s, want the application's", got)
	}
	if err, _ := readErr(t, idle, 5*time.Second+late); !errors.Is(err, unix.ETIMEDOUT) {
		t.Errorf("idle: read ended with %v, want ETIMEDOUT", err)
	}
	wantNoFaults(t, a.Programs)
}

// TestAdoptBudget: no more keepalives leave than a pass may set off (kernel-facts
// T16), counted on the wire.
func TestAdoptBudget(t *testing.T) {
	a := newAdoption(t, `version: 1
defaults: {user_timeout: 60s, keepalive: {idle: 6s, interval: 6s, count: 5}}
peers: [{name: server, cidrs: [10.91.2.0/24]}]
`)
	ln := labtest.Listen(t, a.Server, netip.AddrPortFrom(a.ServerAddr4, 0))
	to := labtest.Addr(ln.Addr())
	var clients []*net.TCPConn
	for i := range 40 {
		d := labtest.Dialer{NS: a.Client}
		if i%2 == 0 { // with a keepalive of its own, which is 2 h away
			d.Setup = func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1) }
		}
		clients = append(clients, d.Dial(t, to))
		labtest.Accept(t, ln)
	}
	a.silent(t, a.Client, clients[len(clients)-1], 6500*time.Millisecond)
	sent := labtest.Counter(t)(a.Count(lab.Match{DstPort: to.Port()}))
	began, spent := time.Now(), uint32(0)
	for _, step := range []struct{ budget, sent uint32 }{{0, 0}, {7, 7}, {13, 20}, {100, 40}} {
		told, stats := a.pass(t, a.Client, step.budget)
		left := uint64(len(clients)) - uint64(step.sent)
		spent += stats.Spent
		if len(told) != len(clients) || stats.PutOff != left || stats.Waits[loader.WaitBudget] != left || spent != step.sent {
			t.Errorf("budget %d: told of %d, %+v, want %d put off", step.budget, len(told), stats, left)
		}
		labtest.Eventually(t, late, func() bool { return labtest.Packets(t, sent) >= uint64(step.sent) }, "the keepalives leave")
		time.Sleep(100 * time.Millisecond) // for more to come, which must not
		if n := labtest.Packets(t, sent); n != uint64(step.sent) && time.Since(began) < 5*time.Second {
			t.Errorf("budget %d: %d packets left, want %d", step.budget, n, step.sent)
		}
	}
	a.settle(t, a.Client)
	for _, c := range clients {
		want := conn.Options{KeepAlive: true, Idle: 6 * time.Second, Interval: 6 * time.Second, Count: 5, UserTimeout: 60 * time.Second}
		wantOptions(t, "with all set", c, want)
	}
	wantNoFaults(t, a.Programs)
}

// TestAdoptDrift: what an application sets outside the programs' sight is held by
// the next pass, and what it sets tighter stays. A probed socket has not drifted.
func TestAdoptDrift(t *testing.T) {
	a := newAdoption(t, slowPolicy+`
peers: [{name: server, cidrs: [10.91.2.0/24]}]
`)
	client, _ := labtest.Pair(t, a.Lab, 0)
	a.settle(t, a.Client)
	pass := func(want loader.Outcome, options conn.Options) {
		t.Helper()
		if one := adopted(t, a.settle(t, a.Client), client); one.Outcome != want {
			t.Errorf("told %+v, want %s", one, want)
		}
		wantOptions(t, want.String(), client, options)
	}
	labtest.Setsockopt(t, client, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 0)
	labtest.Setsockopt(t, client, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 0)
	labtest.Setsockopt(t, client, unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 9)
	pass(loader.Drifted, slow)
	pass(loader.Managed, slow)
	labtest.Setsockopt(t, client, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 2)
	tight := slow
	tight.Idle = 2 * time.Second
	pass(loader.Drifted, tight)
	pass(loader.Managed, tight)
	if c := mustCounters(t, a.Programs, "server"); c.Drifted != 2 || c.Adopted != 1 || c.Open() != 1 {
		t.Errorf("counters %+v", c)
	}

	loadertest.Need(t, a.Programs, kernel.Provoke)
	cookies := []uint64{labtest.Cookie(t, client)}
	provoked := tight
	provoked.Idle = time.Second
	inside := func(fn func([]uint64) ([]uint64, error)) {
		t.Helper()
		err := a.Client.Do(func() error {
			if got, err := fn(cookies); err != nil || len(got) != 1 {
				return fmt.Errorf("reached %d: %w", len(got), err)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	inside(a.Provoke)
	told, _ := a.pass(t, a.Client, plenty)
	if one := adopted(t, told, client); one.Outcome != loader.Managed || one.Wait != loader.WaitProber {
		t.Errorf("probed: told %+v", one)
	}
	wantOptions(t, "probed", client, provoked)
	inside(a.Calm)
	pass(loader.Managed, tight)
	wantNoFaults(t, a.Programs)
}

// TestAdoptAllow: with app_override: allow what the application set stands.
func TestAdoptAllow(t *testing.T) {
	b := loadertest.New(t, slowPolicy+`
peers: [{name: server, cidrs: [10.91.2.0/24], app_override: allow}]
`)
	loadertest.Need(t, b.Programs, kernel.Adopt)
	a := &adoption{Lab: b.Lab, Programs: b.Programs}
	client, _ := labtest.Pair(t, a.Lab, 0)
	labtest.Setsockopt(t, client, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 0)
	labtest.Setsockopt(t, client, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 600)
	labtest.Setsockopt(t, client, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 0)
	want := slow
	want.Idle, want.UserTimeout, want.KeepAlive = 600*time.Second, 0, false
	wantOptions(t, "allowed", client, want)
	if one := adopted(t, a.settle(t, a.Client), client); one.Outcome != loader.Managed {
		t.Errorf("told %+v", one)
	}
	wantOptions(t, "after a pass", client, want)
	b.SetPolicy(t, slowPolicy+`
peers: [{name: server, cidrs: [10.91.2.0/24]}]
`)
	a.settle(t, a.Client)
	wantOptions(t, "tightened", client, slow)
	wantNoFaults(t, b.Programs)
}
