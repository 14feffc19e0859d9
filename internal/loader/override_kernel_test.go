// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
)

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
