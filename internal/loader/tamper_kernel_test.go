// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"bytes"
	"errors"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
)

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
