// SPDX-License-Identifier: Apache-2.0

package sockets_test

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/policy"
	"github.com/sockhealth/sockhealth/internal/sockdiag"
	"github.com/sockhealth/sockhealth/internal/sockets"
)

// TestDirections: who opened a connection is told by the listeners of its namespace; and
// where there is none for a port that no client gets by itself, it is not certain.
func TestDirections(t *testing.T) {
	b := loadertest.New(t, loadertest.Fast)
	s := sockets.New(b.Programs)
	if labtest.Without("inet_diag") {
		if _, err := s.Directions(b.Server); !errors.Is(err, sockdiag.ErrUnsupported) {
			t.Errorf("without inet_diag: %v", err)
		}
		return
	}
	at := netip.AddrPortFrom(b.ServerAddr4, 7100)
	l := labtest.Listen(t, b.Server, at)
	client := labtest.Dial(t, b.Client, netip.AddrPort{}, at)
	server := labtest.Accept(t, l)
	want := func(when string, is policy.Directions) {
		t.Helper()
		id := conn.ID{Family: 2, Local: labtest.Addr(server.LocalAddr()), Remote: labtest.Addr(server.RemoteAddr())}
		if got := opened(t, s, b.Server, &id); got != is {
			t.Errorf("server %s: %s, want %s", when, got, is)
		}
		id.Local, id.Remote = id.Remote, id.Local
		if got := opened(t, s, b.Client, &id); got != policy.Directions(conn.Outbound) {
			t.Errorf("client %s: %s", when, got)
		}
	}
	want("with its listener", policy.Directions(conn.Inbound))
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	want("without", policy.Both)
	_ = client
}

// opened is who may have opened a connection of a namespace.
func opened(t *testing.T, s *sockets.Sockets, ns *netns.NS, id *conn.ID) policy.Directions {
	t.Helper()
	by, err := s.Directions(ns)
	if err != nil {
		t.Fatal(err)
	}
	return by(id)
}
