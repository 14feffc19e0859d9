// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/netip"
	"testing"

	"github.com/sockhealth/sockhealth/internal/conn"
)

func TestNear(t *testing.T) {
	a, b, c := netip.MustParseAddrPort("10.0.0.1:1"), netip.MustParseAddrPort("10.0.0.2:2"), netip.MustParseAddrPort("10.0.0.3:3")
	have := conn.ID{Local: a, Remote: b, Cookie: 7}
	for _, tc := range []struct {
		what  string
		asked conn.ID
		how   string // "": not near
	}{
		{"cookie, of another namespace", conn.ID{Cookie: 7, Netns: 9}, "of that cookie"},
		{"another cookie", conn.ID{Cookie: 8}, ""},
		{"another cookie, its addresses", conn.ID{Cookie: 8, Local: a, Remote: b}, "of these addresses"},
		{"local alone, of another namespace", conn.ID{Local: a, Netns: 9}, "of these addresses"},
		{"the other way round", conn.ID{Local: b, Remote: a}, "the other way round"},
		{"the peer as local", conn.ID{Local: b}, "the other way round"},
		{"another peer", conn.ID{Local: a, Remote: c}, "of that local address"},
		{"another local port", conn.ID{Local: c, Remote: b}, "to that peer"},
		{"the local as peer", conn.ID{Local: c, Remote: a}, "of that address"},
		{"neither", conn.ID{Local: c, Remote: c}, ""},
	} {
		n, ok := newNear(tc.asked, have)
		if ok != (tc.how != "") || n.how != tc.how || ok && n.id != have {
			t.Errorf("%s: %+v, %v, want %q", tc.what, n, ok, tc.how)
		}
	}
}
