// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
	"github.com/sockhealth/sockhealth/internal/policy"
)

const tcpRTOMaxMS = 44

// capPolicy has data in flight bounded by retransmissions a second apart at most.
const capPolicy = `version: 1
defaults: {user_timeout: 15s, in_flight: rto_cap}
peers: [{name: server, cidrs: [10.91.2.0/24]}]
`

// capping are the options by capPolicy, without TCP_RTO_MAX_MS, which labtest.RTOMax
// reads.
var capping = conn.Options{KeepAlive: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 5}

// TestRTOCap: no user timeout is set. Of three connections with data in flight the one
// whose peer does not read lives, without any guard, longer than those whose path is
// gone, which end within their bound (kernel-facts T12).
func TestRTOCap(t *testing.T) {
	b := loadertest.New(t, capPolicy)
	loadertest.Need(t, b.Programs, kernel.RTOCap)
	slow, slowPeer := labtest.Pair(t, b.Lab, 0)
	dead, deadPeer := labtest.Pair(t, b.Lab, 0)
	gone, gonePeer := labtest.Pair(t, b.Lab, 0)
	wantOptions(t, "opened", dead, capping)
	if got := labtest.RTOMax(t, dead); got != time.Second {
		t.Errorf("TCP_RTO_MAX_MS %s, want 1s", got)
	}
	fill(t, slow)
	fill(t, gone)
	labtest.Fault(t)(b.DropPort(labtest.Addr(deadPeer.LocalAddr()).Port()))
	labtest.Fault(t)(b.DropPort(labtest.Addr(gonePeer.LocalAddr()).Port()))
	if _, err := dead.Write([]byte("ping")); err != nil {
		t.Fatal(err)
	}
	p := b.Programs.InForce().Policy
	bound := p.Peers[0].FiguresOn(groundOf(t, b)).InFlightBound
	began := time.Now()
	if err, took := readErr(t, dead, bound+late); !errors.Is(err, unix.ETIMEDOUT) || took < bound-time.Second {
		t.Errorf("in flight: read ended with %v after %s, want ETIMEDOUT after %s", err, took, bound)
	}
	t.Logf("in flight: ended after %s, bound %s", time.Since(began), bound)
	if err, _ := readErr(t, gone, bound+late); !errors.Is(err, unix.ETIMEDOUT) {
		t.Errorf("window shut: read ended with %v, want ETIMEDOUT", err)
	}
	t.Logf("window shut: ended after %s", time.Since(began))
	labtest.Eventually(t, 20*time.Second+late, func() bool { return time.Since(began) > 20*time.Second }, "time to pass")
	drain(t, slowPeer)
	wantAlive(t, "does not read", slow, slowPeer)
	wantNoFaults(t, b.Programs)
}

// TestRTOCapClose: what is closed with data on the way delivers it after an outage that
// is longer than the kernel gives an orphan whose retransmissions are as rare as they
// may be (kernel-facts L11), and has a bound all the same.
func TestRTOCapClose(t *testing.T) {
	b := loadertest.New(t, capPolicy)
	loadertest.Need(t, b.Programs, kernel.RTOCap)
	t.Cleanup(func() { wantNoFaults(t, b.Programs) })
	for name, shutdown := range map[string]func(*net.TCPConn) error{
		"close":              func(*net.TCPConn) error { return nil },
		"shutdown and close": (*net.TCPConn).CloseWrite,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, peer := labtest.Pair(t, b.Lab, 0)
			id := labtest.ID(t, b.Client, c)
			drop := labtest.Fault(t)(b.DropC2S(labtest.Addr(peer.LocalAddr()).Port()))
			if _, err := c.Write([]byte("ping")); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(shutdown(c), c.Close()); err != nil {
				t.Fatal(err)
			}
			var set conn.Options
			err := b.Client.Do(func() error {
				s, err := b.Programs.Look(id.Local, id.Remote, 0)
				set = s.Options
				return err
			})
			if err != nil || set.UserTimeout != 15*time.Second || set.RTOMax != 0 {
				t.Errorf("closed: options %+v (%v), want a user timeout instead of the limit", set, err)
			}
			closed := time.Now()
			labtest.Eventually(t, late, func() bool { return time.Since(closed) > 5*time.Second }, "an outage")
			labtest.Heal(t, drop)
			_ = peer.SetReadDeadline(time.Now().Add(late))
			if got, err := io.ReadAll(peer); string(got) != "ping" || err != nil {
				t.Errorf("the peer got %q (%v)", got, err)
			}
		})
	}
}

// TestRTOCapWishes: a shorter user timeout of the application's own is set, a longer
// one is not; fewer keepalives than forgive three lost ones are not.
func TestRTOCapWishes(t *testing.T) {
	b := loadertest.New(t, capPolicy)
	loadertest.Need(t, b.Programs, kernel.RTOCap)
	c, _ := labtest.Pair(t, b.Lab, 0)
	set := func(option, value int, change func(*conn.Options)) {
		t.Helper()
		labtest.Setsockopt(t, c, unix.IPPROTO_TCP, option, value)
		want := capping
		change(&want)
		wantOptions(t, "set", c, want)
	}
	set(unix.TCP_USER_TIMEOUT, 60_000, func(*conn.Options) {})
	set(unix.TCP_USER_TIMEOUT, 14_000, func(o *conn.Options) {
		o.UserTimeout, o.Idle, o.Interval = 14*time.Second, 4*time.Second, time.Second
	})
	set(unix.TCP_USER_TIMEOUT, 0, func(*conn.Options) {})
	set(unix.TCP_KEEPCNT, 1, func(o *conn.Options) { o.Count = 3 })
	set(tcpRTOMaxMS, 120_000, func(o *conn.Options) { o.Count = 3 })
	if got := labtest.RTOMax(t, c); got != time.Second {
		t.Errorf("TCP_RTO_MAX_MS %s, want 1s", got)
	}
	wantNoFaults(t, b.Programs)
}

// TestRTOCapAdopt: what is open already gets it by adoption, and back what it had; one
// that waits for an answer gets it when that has come.
func TestRTOCapAdopt(t *testing.T) {
	a := newAdoption(t, slowPolicy+`
peers: [{name: server, cidrs: [10.91.2.0/24]}]
`)
	loadertest.Need(t, a.Programs, kernel.RTOCap)
	c, peer := labtest.Pair(t, a.Lab, 0)
	a.settle(t, a.Client)
	before := labtest.RTOMax(t, c)
	drop := labtest.Fault(t)(a.DropPort(labtest.Addr(peer.LocalAddr()).Port()))
	if _, err := c.Write([]byte("ping")); err != nil {
		t.Fatal(err)
	}
	labtest.Eventually(t, late, func() bool { return a.look(t, a.Client, c).Retransmits > 0 }, "a retransmission")
	a.setPolicy(t, capPolicy)
	told, _ := a.pass(t, a.Client, plenty)
	if one := adopted(t, told, c); one.Wait != loader.WaitStuck {
		t.Errorf("waits for an answer: told %+v", one)
	}
	wantOptions(t, "waits for an answer", c, slow)
	if got := labtest.RTOMax(t, c); got != before {
		t.Errorf("TCP_RTO_MAX_MS %s, want %s", got, before)
	}
	labtest.Heal(t, drop)
	a.settle(t, a.Client)
	wantOptions(t, "capped", c, capping)
	if got := labtest.RTOMax(t, c); got != time.Second {
		t.Errorf("TCP_RTO_MAX_MS %s, want 1s", got)
	}
	if one := adopted(t, a.settle(t, a.Client), c); one.Outcome != loader.Managed {
		t.Errorf("the next pass tells %+v", one)
	}
	r := a.look(t, a.Client, c).Record
	if peer := &a.InForce().Policy.Peers[0]; r.Policed != a.InForce().Wanted(peer) || r.Pending {
		t.Errorf("record %+v", r)
	}
	labtest.Setsockopt(t, c, unix.IPPROTO_TCP, tcpRTOMaxMS, 120_000) // no program sees it
	if one := adopted(t, a.settle(t, a.Client), c); one.Outcome != loader.Drifted || labtest.RTOMax(t, c) != time.Second {
		t.Errorf("the application has it looser: told %+v, and TCP_RTO_MAX_MS is %s", one, labtest.RTOMax(t, c))
	}
	a.setPolicy(t, slowPolicy+`
peers: [{name: server, cidrs: [10.91.2.0/24]}]
`)
	a.settle(t, a.Client)
	wantOptions(t, "by user timeout again", c, slow)
	if got := labtest.RTOMax(t, c); got != before {
		t.Errorf("TCP_RTO_MAX_MS %s, want %s", got, before)
	}
	wantAlive(t, "by user timeout again", c, peer)
	wantNoFaults(t, a.Programs)
}

// TestRTOCapOlder: where the kernel has no such limit the user timeout is set, and the
// policy in force says so.
func TestRTOCapOlder(t *testing.T) {
	b := loadertest.New(t, capPolicy)
	if loadertest.Has(t, b.Programs, kernel.RTOCap) {
		if got := b.Programs.InForce().Uncapped(); len(got) != 0 {
			t.Errorf("uncapped: %v", got)
		}
		t.Skip("this kernel has it")
	}
	if got := b.Programs.InForce().Uncapped(); len(got) != 1 || got[0] != "server" {
		t.Errorf("uncapped: %v", got)
	}
	c, _ := labtest.Pair(t, b.Lab, 0)
	want := capping
	want.UserTimeout = 15 * time.Second
	wantOptions(t, "opened", c, want)
	wantNoFaults(t, b.Programs)
}

// groundOf is what the client's namespace of a bed gives a policy.
func groundOf(t *testing.T, b *loadertest.Bed) (g policy.Ground) {
	t.Helper()
	g.RTOCap = b.Programs.Lacks(kernel.RTOCap) == nil
	err := b.Client.Do(func() (err error) {
		g.Retries2, err = kernel.Retries2()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return g
}
