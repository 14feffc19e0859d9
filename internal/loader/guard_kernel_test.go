// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"errors"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
)

// guardPolicy: user timeout 7 s, five probes forgiven.
const guardPolicy = `version: 1
defaults: {user_timeout: 7s, keepalive: {idle: 2s, interval: 1s, count: 5}}
peers: [{name: server, cidrs: [10.91.2.0/24]}]
`

// guarding is a bed whose policy is guardPolicy, with passes made by hand.
type guarding struct{ *adoption }

func newGuarding(t *testing.T) *guarding {
	t.Helper()
	return &guarding{inForce(t, guardPolicy, kernel.Guard)}
}

// inForce is a bed whose connections the programs see open under a policy, on a kernel with
// a feature.
func inForce(t *testing.T, policyText string, need kernel.Feature) *adoption {
	t.Helper()
	b := loadertest.New(t, policyText)
	loadertest.Need(t, b.Programs, need)
	return &adoption{Lab: b.Lab, Programs: b.Programs}
}

// guard makes one pass over the client's namespace and returns what it told.
func (g *guarding) guard(t *testing.T) (told []loader.Guarded) {
	t.Helper()
	err := g.Client.Do(func() error {
		return g.Programs.Guard(2*time.Second, func(one loader.Guarded) error {
			told = append(told, one)
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return told
}

// shut fills a connection and waits until a pass has raised its user timeout.
func (g *guarding) shut(t *testing.T, c *net.TCPConn) {
	t.Helper()
	fill(t, c)
	labtest.Eventually(t, late, func() bool {
		g.guard(t)
		return g.look(t, g.Client, c).Record.Guarded
	}, "it is guarded")
}

// step is what the pass makes of the one connection there is.
func (g *guarding) step(t *testing.T, want loader.GuardStep) {
	t.Helper()
	told := g.guard(t)
	if len(told) != 1 || told[0].Step != want {
		t.Errorf("a pass tells %+v, want %s", told, want)
	}
}

// wantRaised fails the test unless a connection has the user timeout that the guard gave
// it, before a pass of adoption and after.
func (g *guarding) wantRaised(t *testing.T, what string, c *net.TCPConn, raised time.Duration) {
	t.Helper()
	if got := labtest.Options(t, c).UserTimeout; got != raised {
		t.Errorf("%s: user timeout %s, want %s", what, got, raised)
	}
	if one := adopted(t, g.settle(t, g.Client), c); one.Outcome == loader.Drifted || one.Outcome == loader.Released {
		t.Errorf("%s: adoption tells %+v", what, one)
	}
	if got := labtest.Options(t, c).UserTimeout; got != raised {
		t.Errorf("%s: user timeout %s after adoption, want %s", what, got, raised)
	}
}

// TestGuardOptions: the user timeout of a peer that does not read is finite and long;
// what its application asks for meanwhile, what a policy does that changes, and what
// adoption does, show when it reads again. Nothing of it is drift.
func TestGuardOptions(t *testing.T) {
	g := newGuarding(t)
	c, peer := labtest.Pair(t, g.Lab, 0)
	if told := g.guard(t); len(told) != 0 {
		t.Errorf("a pass over peers that read tells %+v", told)
	}
	g.shut(t, c)
	survey, err := g.SurveyWindows()
	if err != nil || len(survey.Shut) != 1 || survey.Shut[g.Client.Inode()] != 1 || survey.Shortest != 7*time.Second {
		t.Errorf("survey %+v (%v)", survey, err)
	}
	raised := labtest.Options(t, c).UserTimeout
	if raised < 30*time.Second || raised > 11*time.Minute {
		t.Errorf("user timeout %s, want a longer and finite one", raised)
	}
	wantRaised := func(what string) { t.Helper(); g.wantRaised(t, what, c, raised) }
	wantRaised("guarded")
	labtest.Setsockopt(t, c, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 3500)
	wantRaised("the application set it")
	wantMeant := func(want time.Duration) {
		t.Helper()
		if r := g.look(t, g.Client, c).Record; r.Effective.UserTimeout != want || r.App.UserTimeout != 3500*time.Millisecond {
			t.Errorf("record %+v, want a user timeout of %s", r, want)
		}
	}
	wantMeant(6 * time.Second)                                      // room for five probes
	labtest.Setsockopt(t, c, unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 2) // and for three
	wantRaised("the application set another option, which changes it")
	wantMeant(4 * time.Second)
	g.setPolicy(t, `version: 1
defaults: {user_timeout: 30s, keepalive: {idle: 2s, interval: 1s, count: 5}, app_override: enforce}
peers: [{name: server, cidrs: [10.91.2.0/24]}]
`)
	wantRaised("another policy")
	g.setPolicy(t, guardPolicy)
	wantRaised("the policy from before")

	drain(t, peer)
	labtest.Eventually(t, late, func() bool { g.guard(t); return !g.look(t, g.Client, c).Record.Guarded }, "it has its own user timeout back")
	want := conn.Options{KeepAlive: true, Idle: time.Second, Interval: time.Second, Count: 2, UserTimeout: 4 * time.Second}
	wantOptions(t, "reads again", c, want)
	if got := labtest.RTOMax(t, c); got != 0 && got != 2*time.Minute {
		t.Errorf("TCP_RTO_MAX_MS %s", got)
	}
	wantAlive(t, "reads again", c, peer)
	counted := mustCounters(t, g.Programs, "server")
	if counted.Guarded != 1 || counted.Drifted != 0 || counted.Open() != 1 {
		t.Errorf("counters %+v", counted)
	}
	wantNoFaults(t, g.Programs)
}

// TestGuardLate: an application's call that was under way as the guard ended leaves
// the guard's user timeout on the socket. It is nobody's wish.
func TestGuardLate(t *testing.T) {
	g := &guarding{newAdoption(t, guardPolicy)} // no program sees what the application sets
	c, peer := labtest.Pair(t, g.Lab, 0)
	g.settle(t, g.Client)
	g.shut(t, c)
	raised := labtest.Options(t, c).UserTimeout
	drain(t, peer)
	labtest.Eventually(t, late, func() bool { g.guard(t); return !g.look(t, g.Client, c).Record.Guarded }, "it has its own user timeout back")
	labtest.Setsockopt(t, c, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(raised/time.Millisecond))
	survey, err := g.SurveyWindows()
	if err != nil || survey.Shut[g.Client.Inode()] != 1 {
		t.Errorf("survey %+v (%v)", survey, err)
	}
	g.step(t, loader.GuardEnded)
	if got := labtest.Options(t, c).UserTimeout; got != 7*time.Second {
		t.Errorf("user timeout %s", got)
	}
	if one := adopted(t, g.settle(t, g.Client), c); one.Outcome != loader.Managed {
		t.Errorf("adoption tells %+v", one)
	}
}

// TestGuardRelease: a connection that no policy names any more keeps the guard's user
// timeout until its peer reads, and then gets its application's.
func TestGuardRelease(t *testing.T) {
	g := newGuarding(t)
	c, peer := labtest.Pair(t, g.Lab, 0)
	labtest.Setsockopt(t, c, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 6500)
	g.shut(t, c)
	raised := labtest.Options(t, c).UserTimeout
	g.setPolicy(t, `version: 1
peers: [{name: server, cidrs: [192.0.2.0/24]}]
`)
	told, _ := g.pass(t, g.Client, plenty)
	if one := adopted(t, told, c); one.Outcome == loader.Released || one.Wait != loader.WaitWindow {
		t.Errorf("told %+v", one)
	}
	if got := labtest.Options(t, c).UserTimeout; got != raised {
		t.Errorf("user timeout %s, want %s", got, raised)
	}
	drain(t, peer)
	labtest.Eventually(t, late, func() bool {
		g.guard(t)
		told, _ := g.pass(t, g.Client, plenty)
		return told.of(c).Outcome == loader.Released
	}, "it is released")
	if got := labtest.Options(t, c).UserTimeout; got != 6500*time.Millisecond {
		t.Errorf("user timeout %s, want the application's", got)
	}
	wantAlive(t, "released", c, peer)
}

// TestUnguard: when the programs come off a peer that still does not read has its
// application's own user timeout from then on, and its record is gone.
func TestUnguard(t *testing.T) {
	g := newGuarding(t)
	c, peer := labtest.Pair(t, g.Lab, 0)
	labtest.Setsockopt(t, c, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 6500)
	before := labtest.RTOMax(t, c)
	g.shut(t, c)
	shut := time.Now()
	g.setPolicy(t, `version: 1
peers: [{name: server, cidrs: [192.0.2.0/24]}]
`)
	told, _ := g.pass(t, g.Client, plenty)
	if one := adopted(t, told, c); one.Wait != loader.WaitWindow {
		t.Errorf("told %+v", one)
	}
	labtest.Eventually(t, late, func() bool { return time.Since(shut) > time.Second }, "time")
	if err := g.Client.Do(g.Unguard); err != nil {
		t.Fatal(err)
	}
	if got := labtest.Options(t, c).UserTimeout; got < 7400*time.Millisecond || got > 6500*time.Millisecond+late {
		t.Errorf("user timeout %s, want the application's and the time until now", got)
	}
	if got := labtest.RTOMax(t, c); got != before {
		t.Errorf("TCP_RTO_MAX_MS %s, want %s", got, before)
	}
	told, stats := g.pass(t, g.Client, plenty)
	if one := adopted(t, told, c); one.Outcome != loader.Released || stats.Pending() != 0 {
		t.Errorf("told %+v, %+v", one, stats)
	}
	drain(t, peer) // what waits to be sent would hold up a write
	wantAlive(t, "released", c, peer)
}

// TestUnguardUnasked: a connection whose application asked for no user timeout has none
// at once, and its retransmissions are limited as before, although its window is shut.
func TestUnguardUnasked(t *testing.T) {
	g := newGuarding(t)
	c, peer := labtest.Pair(t, g.Lab, 0)
	before := labtest.RTOMax(t, c)
	g.shut(t, c)
	g.setPolicy(t, `version: 1
peers: [{name: server, cidrs: [192.0.2.0/24]}]
`)
	told, _ := g.pass(t, g.Client, plenty)
	if one := adopted(t, told, c); one.Outcome != loader.Released {
		t.Errorf("told %+v", one)
	}
	if got := labtest.Options(t, c).UserTimeout; got != 0 {
		t.Errorf("user timeout %s", got)
	}
	if got := labtest.RTOMax(t, c); got != before {
		t.Errorf("TCP_RTO_MAX_MS %s, want %s", got, before)
	}
	drain(t, peer)
	wantAlive(t, "released", c, peer)
}

// TestGuardGone: where no pass comes any more, and the window has opened since, the next
// stall is bounded by the connection's own user timeout.
func TestGuardGone(t *testing.T) {
	g := newGuarding(t)
	c, peer := labtest.Pair(t, g.Lab, 0)
	g.shut(t, c)
	drain(t, peer)
	labtest.Eventually(t, late, func() bool { s := g.look(t, g.Client, c); return !s.InFlight() }, "all is acknowledged")
	if got := labtest.Options(t, c).UserTimeout; got < 30*time.Second {
		t.Errorf("user timeout %s before the stall", got)
	}
	labtest.Fault(t)(g.DropPort(labtest.Addr(c.RemoteAddr()).Port()))
	if _, err := c.Write([]byte("ping")); err != nil {
		t.Fatal(err)
	}
	labtest.Eventually(t, late, func() bool { return g.look(t, g.Client, c).Retransmits > 0 }, "a retransmission")
	if got := labtest.Options(t, c).UserTimeout; got != 7*time.Second {
		t.Errorf("user timeout %s in the stall", got)
	}
}

// TestGuardStamp: a window that opened by less than the next segment leaves the time
// of its first probe behind (kernel-facts L9). The next one that is shut costs no
// connection, and one whose peer dies meanwhile ends by its own bound.
func TestGuardStamp(t *testing.T) {
	g := newGuarding(t)
	c, peer := labtest.NarrowPair(t, g.Lab, narrow)
	g.stamp(t, c, peer)
	time.Sleep(8 * time.Second) // longer than the user timeout, with the pass above to live on
	g.step(t, loader.GuardKept)
	fill(t, c)
	time.Sleep(time.Second) // of a window that is shut: the first probe has been
	g.step(t, loader.GuardKept)
	drain(t, peer)
	wantAlive(t, "shut again", c, peer)

	g.stamp(t, c, peer)
	labtest.Fault(t)(g.DropPort(labtest.Addr(c.RemoteAddr()).Port()))
	began := time.Now()
	labtest.Eventually(t, 14*time.Second+late, func() bool {
		for _, one := range g.guard(t) {
			if one.Step == loader.GuardSilent && one.UserTimeout != 7*time.Second {
				t.Errorf("a pass tells %+v, want what bounds any connection", one)
			}
		}
		return errors.Is(socketError(t, c), unix.ETIMEDOUT)
	}, "a dead peer is noticed")
	t.Logf("noticed after %s", time.Since(began))
}

// narrow is the peer's receive buffer.
const narrow = 16 << 10

// stamp has the peer take what is sent to it so that the time of the first probe stays
// behind although all is acknowledged: its window opens by less than what comes next, and is
// wide once a part of that is on its way, which is lost until the peer has read all.
func (g *guarding) stamp(t *testing.T, c, peer *net.TCPConn) {
	t.Helper()
	const next = 8 << 10
	for labtest.TCPInfo(t, c).Notsent_bytes < next {
		if _, err := c.Write(make([]byte, 1<<10)); err != nil {
			t.Fatal(err)
		}
		labtest.Eventually(t, late, func() bool { return labtest.TCPInfo(t, c).Unacked == 0 }, "what was sent is acknowledged")
	}
	labtest.Eventually(t, late, func() bool {
		g.guard(t)
		return g.look(t, g.Client, c).Record.Guarded
	}, "it is guarded")
	lost := labtest.Fault(t)(g.DropC2S(labtest.Addr(c.RemoteAddr()).Port()))
	labtest.Setsockopt(t, peer, unix.SOL_SOCKET, unix.SO_RCVBUF, 2<<10)
	drain(t, peer)
	labtest.Eventually(t, late, func() bool { return labtest.TCPInfo(t, c).Unacked > 0 }, "the window is open")
	labtest.Setsockopt(t, peer, unix.SOL_SOCKET, unix.SO_RCVBUF, narrow)
	labtest.Heal(t, lost)
	labtest.Eventually(t, late, func() bool {
		drain(t, peer)
		s := g.look(t, g.Client, c)
		return !s.InFlight()
	}, "all is acknowledged")
	g.step(t, loader.GuardKept)
}

// socketError takes the error that waits on a connection.
func socketError(t *testing.T, c *net.TCPConn) error {
	t.Helper()
	return unix.Errno(labtest.Getsockopt(t, c, unix.SOL_SOCKET, unix.SO_ERROR))
}
