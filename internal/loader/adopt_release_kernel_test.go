// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
)

// TestAdoptRelease: whom the policy names no more gets back what its application
// last asked for, and is free.
func TestAdoptRelease(t *testing.T) {
	b := loadertest.New(t, loadertest.Fast)
	loadertest.Need(t, b.Programs, kernel.Adopt)
	a := &adoption{Lab: b.Lab, Programs: b.Programs}
	untouched, _ := labtest.Pair(t, a.Lab, 0)
	wishful, _ := labtest.PairTo(t, labtest.Dialer{NS: a.Client, KeepAlive: true}, a.Server, netip.AddrPortFrom(a.ServerAddr4, 0))
	labtest.Setsockopt(t, wishful, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 900_000)
	labtest.Setsockopt(t, wishful, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 600)
	if err := b.Cgroup.Leave(); err != nil {
		t.Fatal(err)
	}
	old, _ := labtest.Pair(t, a.Lab, 0)
	a.settle(t, a.Client)
	for _, c := range []*net.TCPConn{untouched, wishful, old} {
		wantOptions(t, "before", c, fast)
	}
	b.SetPolicy(t, `version: 1
peers: [{name: server, cidrs: [192.0.2.0/24]}]
`)
	told := a.settle(t, a.Client)
	wish := conn.Options{KeepAlive: true, Idle: 600 * time.Second, Interval: 15 * time.Second, Count: 9, UserTimeout: 900 * time.Second}
	for _, test := range []struct {
		c    *net.TCPConn
		want conn.Options
	}{{untouched, unset}, {wishful, wish}, {old, unset}} {
		if one := adopted(t, told, test.c); one.Outcome != loader.Released {
			t.Errorf("told %+v", one)
		}
		wantOptions(t, "after", test.c, test.want)
		if a.look(t, a.Client, test.c).HasRecord {
			t.Error("the record is still there")
		}
		labtest.Setsockopt(t, test.c, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 1_000_000)
		if got := labtest.Options(t, test.c).UserTimeout; got != 1000*time.Second {
			t.Errorf("user timeout %s is still held", got)
		}
	}
	if c := mustCounters(t, a.Programs, "server"); c.Released != 3 || c.Open() != 0 {
		t.Errorf("counters %+v", c)
	}
	if told, _ := a.pass(t, a.Client, plenty); len(told) != 0 {
		t.Errorf("the next pass tells %+v", told)
	}
	wantNoFaults(t, a.Programs)
}

// TestAdoptLeave: a pass can take leave of all, whatever the policy says.
func TestAdoptLeave(t *testing.T) {
	a := newAdoption(t, slowPolicy+`
peers: [{name: server, cidrs: [10.91.2.0/24]}]
`)
	client, _ := labtest.Pair(t, a.Lab, 0)
	stranger, _ := labtest.PairTo(t, labtest.Dialer{NS: a.Client}, a.Server, netip.AddrPortFrom(a.ServerAddr6, 0))
	a.settle(t, a.Client)
	wantOptions(t, "before", client, slow)
	n := 0
	err := a.Client.Do(func() error {
		_, err := a.Adopt(loader.AdoptOptions{Release: true}, func(one loader.Adoption) error {
			n++
			if one.Outcome != loader.Released || one.Cookie != labtest.Cookie(t, client) {
				t.Errorf("told %+v", one)
			}
			return nil
		})
		return err
	})
	if err != nil || n != 1 {
		t.Errorf("told of %d: %v", n, err)
	}
	wantOptions(t, "after", client, unset)
	wantOptions(t, "whom nobody named", stranger, unset)
	if a.look(t, a.Client, client).HasRecord {
		t.Error("the record is still there")
	}
	wantNoFaults(t, a.Programs)
}
