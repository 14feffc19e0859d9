// SPDX-License-Identifier: Apache-2.0

package sockets_test

import (
	"net/netip"
	"testing"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
	"github.com/sockhealth/sockhealth/internal/policy"
	"github.com/sockhealth/sockhealth/internal/sockets"
)

// TestDirections: who opened a connection is told by the listeners of its namespace; and
// where there is none for a port that no client gets by itself, it is not certain.
func TestDirections(t *testing.T) {
	b := loadertest.New(t, loadertest.Fast)
	s := sockets.New(b.Programs)
	at := netip.AddrPortFrom(b.ServerAddr4, 7100)
	l := labtest.Listen(t, b.Server, at)
	client := labtest.Dial(t, b.Client, netip.AddrPort{}, at)
	server := labtest.Accept(t, l)
	want := func(when string, is policy.Directions) {
		t.Helper()
		id := conn.ID{Family: 2, Local: labtest.Addr(server.LocalAddr()), Remote: labtest.Addr(server.RemoteAddr())}
		if got, err := s.Directions(b.Server, &id); err != nil || got != is {
			t.Errorf("server %s: %s, %v, want %s", when, got, err, is)
		}
		id.Local, id.Remote = id.Remote, id.Local
		if got, err := s.Directions(b.Client, &id); err != nil || got != policy.Directions(conn.Outbound) {
			t.Errorf("client %s: %s, %v", when, got, err)
		}
	}
	want("with its listener", policy.Directions(conn.Inbound))
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	want("without", policy.Both)
	_ = client
}
