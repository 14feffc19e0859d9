// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
)

// passes is the time between two passes as guarding tells the kernel.
const passes = 2 * time.Second

// retries2 sets the kernel's number of probes without an answer.
func (g *guarding) retries2(t *testing.T, n int) {
	t.Helper()
	err := g.Client.Do(func() error {
		return os.WriteFile("/proc/sys/net/ipv4/tcp_retries2", fmt.Appendf(nil, "%d", n), 0)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestGuardRunsOut: once a peer stops answering, the kernel is told to end its connection
// when the user timeout and the time to the next pass have gone by since its last packet,
// however long the window was shut before.
func TestGuardRunsOut(t *testing.T) {
	g := newGuarding(t)
	c, peer := labtest.Pair(t, g.Lab, 0)
	g.shut(t, c)
	kept := time.Now() // before the last pass that raises it
	ceiling, patience := time.Minute, time.Duration(0)
	if loadertest.Has(t, g.Programs, kernel.RTOCap) {
		ceiling, patience = 10*time.Minute, 2800*time.Millisecond // five twelfths but for whole ticks, however often it is probed
	}
	elapsed := g.guard(t)[0].UserTimeout - ceiling // since when the kernel counts it
	labtest.Fault(t)(g.DropPort(labtest.Addr(peer.LocalAddr()).Port()))
	labtest.Eventually(t, 14*time.Second+late, func() bool {
		at := time.Now()
		told := g.guard(t)
		if len(told) != 1 {
			t.Fatalf("a pass tells %+v", told)
		}
		if told[0].Step == loader.GuardKept {
			kept, elapsed = at, told[0].UserTimeout-ceiling
			return false
		}
		s := g.look(t, g.Client, c)
		took := time.Since(at)
		left := told[0].UserTimeout - elapsed - at.Sub(kept) // from the pass on
		if got, want := s.PacketAge+left, 7*time.Second+passes; told[0].Step != loader.GuardSilent || got < want-took-time.Second || got > want+took+time.Second {
			t.Errorf("a pass tells %+v: it ends %s after the last packet, want %s", told[0], got, want)
		}
		if s.PacketAge < patience {
			t.Errorf("silent %s after the last packet", s.PacketAge)
		}
		return true
	}, "the peer is known to be silent")
}

// TestGuardRunsOutLate: a pass that comes late leaves the next one time to see an answer.
func TestGuardRunsOutLate(t *testing.T) {
	g := newGuarding(t)
	g.setPolicy(t, `version: 1
defaults: {user_timeout: 4s, keepalive: {idle: 1s, interval: 1s, count: 3}}
peers: [{name: server, cidrs: [10.91.2.0/24]}]
`)
	ceiling := time.Minute
	if loadertest.Has(t, g.Programs, kernel.RTOCap) {
		ceiling = 10 * time.Minute
	}
	c, peer := labtest.Pair(t, g.Lab, 0)
	g.shut(t, c)
	kept := time.Now() // before the last pass that raises it
	elapsed := g.guard(t)[0].UserTimeout - ceiling
	labtest.Fault(t)(g.DropPort(labtest.Addr(peer.LocalAddr()).Port()))
	labtest.Eventually(t, late, func() bool { return g.look(t, g.Client, c).PacketAge > 4*time.Second+passes }, "its bound has passed")
	at := time.Now()
	told := g.guard(t)
	if len(told) != 1 || told[0].Step != loader.GuardSilent {
		t.Fatalf("a pass tells %+v", told)
	}
	// The kernel's ticks, and what went by since kept was taken.
	if left := told[0].UserTimeout - elapsed - at.Sub(kept); left < passes*3/2-100*time.Millisecond {
		t.Errorf("it ends %s after the pass, want %s", left, passes*3/2)
	}
}

// TestGuardPaces: the kernel probes a shut window twice in a probe window, but not so
// often that tcp_retries2 of them without an answer end the connection before its user
// timeout does, nor less often than that allows.
func TestGuardPaces(t *testing.T) {
	g := newGuarding(t)
	loadertest.Need(t, g.Programs, kernel.RTOCap)
	cases := []struct {
		userTimeout, window time.Duration
		retries2            int
		want                time.Duration
	}{
		{15 * time.Second, 3 * time.Second, 15, 1600 * time.Millisecond}, // the defaults: 17 s in 11
		{60 * time.Second, 3 * time.Second, 15, 5700 * time.Millisecond},
		{60 * time.Second, 30 * time.Second, 15, 15 * time.Second},
		{9 * time.Second, 3 * time.Second, 8, 2800 * time.Millisecond},
		{9 * time.Second, 3 * time.Second, 3, 3 * time.Second},
		{9 * time.Second, 600 * time.Millisecond, 200, time.Second},
	}
	if testing.Short() {
		cases = cases[:3]
	}
	for _, test := range cases {
		g.retries2(t, test.retries2)
		g.setPolicy(t, fmt.Sprintf(`version: 1
defaults: {user_timeout: %s, keepalive: {idle: 2s, interval: 1s, count: 5}, probe: {window: %s, attempts: 1}}
peers: [{name: server, cidrs: [10.91.2.0/24]}]
`, test.userTimeout, test.window))
		c, peer := labtest.Pair(t, g.Lab, 0)
		g.shut(t, c)
		if got := labtest.RTOMax(t, c); got != test.want {
			t.Errorf("%+v: up to %s apart", test, got)
		}
		drain(t, peer)
	}
}

// TestWindowProbesGiveUp: of a window that is shut the kernel gives up after tcp_retries2
// probes without an answer, however long the user timeout is (kernel-facts L12).
func TestWindowProbesGiveUp(t *testing.T) {
	g := &guarding{newAdoption(t, guardPolicy)}
	g.retries2(t, 3)
	c, peer := labtest.Pair(t, g.Lab, 0)
	labtest.Setsockopt(t, c, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(10*time.Minute/time.Millisecond))
	fill(t, c)
	labtest.Eventually(t, late, func() bool { return g.look(t, g.Client, c).SndWnd == 0 }, "the window is shut")
	labtest.Fault(t)(g.DropPort(labtest.Addr(peer.LocalAddr()).Port()))
	labtest.Eventually(t, time.Minute, func() bool { return errors.Is(socketError(t, c), unix.ETIMEDOUT) }, "the kernel gives up")
}

// TestTimer: a look tells how far off the next probe of a shut window is, on every kernel.
func TestTimer(t *testing.T) {
	b := loadertest.New(t, guardPolicy)
	g := &guarding{&adoption{Lab: b.Lab, Programs: b.Programs}}
	c, _ := labtest.Pair(t, g.Lab, 0)
	if got := g.look(t, g.Client, c).Timer; got != 0 {
		t.Errorf("nothing waits, and a timer is %s off", got)
	}
	fill(t, c)
	labtest.Eventually(t, late, func() bool {
		before := labtest.TCPInfo(t, c)
		s := g.look(t, g.Client, c)
		after := labtest.TCPInfo(t, c)
		if before.Backoff < 2 || after.Backoff != before.Backoff || s.ProbesOut != 0 || s.SndWnd != 0 {
			return false
		}
		// The answer to the last one has set it.
		set := max(time.Duration(after.Rto)*time.Microsecond, 200*time.Millisecond) << after.Backoff
		if got := s.PacketAge + s.Timer; got < set-50*time.Millisecond || got > set+50*time.Millisecond {
			t.Errorf("the next probe is %s off, %s after the last packet; want %s after it", s.Timer, s.PacketAge, set)
		}
		return true
	}, "the window is probed")
}
