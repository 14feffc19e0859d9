// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
)

// TestGuardAgain: each pass gives a peer that does not read the whole time anew. What the
// pass before gave is the guard's, too, where a call of the application sets it once more.
func TestGuardAgain(t *testing.T) {
	g := &guarding{newAdoption(t, guardPolicy)} // no program sees what the application sets
	c, _ := labtest.Pair(t, g.Lab, 0)
	g.settle(t, g.Client)
	g.shut(t, c)
	var before time.Duration
	labtest.Eventually(t, late, func() bool {
		before = labtest.Options(t, c).UserTimeout
		g.guard(t)
		return labtest.Options(t, c).UserTimeout > before
	}, "a pass raises the user timeout again")
	labtest.Setsockopt(t, c, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(before/time.Millisecond))
	if one := adopted(t, g.settle(t, g.Client), c); one.Outcome != loader.Managed {
		t.Errorf("adoption tells %+v", one)
	}
	if r := g.look(t, g.Client, c).Record; !r.Guarded || r.App.UserTimeout != 0 {
		t.Errorf("record %+v", r)
	}
}

// TestGuardAway: what an application asks for holds at once where no pass of the guard
// comes any more.
func TestGuardAway(t *testing.T) {
	g := newGuarding(t)
	c, _ := labtest.Pair(t, g.Lab, 0)
	g.shut(t, c)
	raised := labtest.Options(t, c).UserTimeout
	for _, step := range []struct {
		since int
		want  time.Duration
	}{{20, raised}, {40, 6 * time.Second}} {
		labtest.Control(t, c, func(fd int) error { return loader.GuardedBefore(g.Programs, fd, step.since) })
		labtest.Setsockopt(t, c, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 6000)
		if got := labtest.Options(t, c).UserTimeout; got != step.want {
			t.Errorf("%d s after the last pass: user timeout %s, want %s", step.since, got, step.want)
		}
	}
}

// TestGuardPace: a TCP_RTO_MAX_MS of the application's own outlives the guard's.
func TestGuardPace(t *testing.T) {
	g := &guarding{newAdoption(t, guardPolicy)} // no program sees it
	loadertest.Need(t, g.Programs, kernel.RTOCap)
	c, peer := labtest.Pair(t, g.Lab, 0)
	g.settle(t, g.Client)
	g.shut(t, c)
	if got := labtest.RTOMax(t, c); got != 1500*time.Millisecond {
		t.Errorf("TCP_RTO_MAX_MS %s while the window is shut", got)
	}
	labtest.Setsockopt(t, c, unix.IPPROTO_TCP, tcpRTOMaxMS, 1300)
	g.guard(t)
	if got := labtest.RTOMax(t, c); got != 1300*time.Millisecond {
		t.Errorf("TCP_RTO_MAX_MS %s after a pass, want the application's, which is lower", got)
	}
	drain(t, peer)
	labtest.Eventually(t, late, func() bool { g.guard(t); return !g.look(t, g.Client, c).Record.Guarded }, "it is no longer guarded")
	if got := labtest.RTOMax(t, c); got != 1300*time.Millisecond {
		t.Errorf("TCP_RTO_MAX_MS %s, want the application's", got)
	}
}

// TestGuardUnseen: a user timeout that somebody set unseen while the window is shut is left
// until adoption has found out whose wish it is; then it is guarded, too.
func TestGuardUnseen(t *testing.T) {
	g := &guarding{newAdoption(t, guardPolicy)} // no program sees it
	c, _ := labtest.Pair(t, g.Lab, 0)
	g.settle(t, g.Client)
	fill(t, c)
	labtest.Eventually(t, late, func() bool { return labtest.TCPInfo(t, c).Probes > 0 || labtest.TCPInfo(t, c).Backoff > 0 }, "the window is shut")
	labtest.Setsockopt(t, c, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 6500)
	if told := g.guard(t); len(told) != 0 {
		t.Errorf("a pass tells %+v", told)
	}
	if got := labtest.Options(t, c).UserTimeout; got != 6500*time.Millisecond {
		t.Errorf("user timeout %s after a pass", got)
	}
	if one := adopted(t, g.settle(t, g.Client), c); one.Outcome != loader.Drifted {
		t.Errorf("adoption tells %+v", one)
	}
	g.shut(t, c)
}

// TestGuardPaceCapped: a pass leaves a lower limit than the policy's alone.
func TestGuardPaceCapped(t *testing.T) {
	g := newGuarding(t)
	loadertest.Need(t, g.Programs, kernel.RTOCap)
	g.setPolicy(t, `version: 1
defaults: {user_timeout: 60s, in_flight: rto_cap}
peers: [{name: server, cidrs: [10.91.2.0/24]}]
`)
	c, _ := labtest.Pair(t, g.Lab, 0)
	if got := labtest.RTOMax(t, c); got < 2*time.Second || got > 10*time.Second {
		t.Errorf("TCP_RTO_MAX_MS %s", got)
	}
	labtest.Setsockopt(t, c, unix.IPPROTO_TCP, tcpRTOMaxMS, 1000)
	g.guard(t)
	if got := labtest.RTOMax(t, c); got != time.Second {
		t.Errorf("TCP_RTO_MAX_MS %s, want the application's", got)
	}
}
