// SPDX-License-Identifier: Apache-2.0

package listeners

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/policy"
	"github.com/sockhealth/sockhealth/internal/sockdiag"
)

// Who opened a connection, by the listeners of its namespace.
func TestDirections(t *testing.T) {
	const in, out = policy.Directions(conn.Inbound), policy.Directions(conn.Outbound)
	l := newListeners(32768, 60999)
	for _, at := range []struct {
		family uint8
		addr   string
	}{
		{unix.AF_INET, "10.0.0.1:7100"}, {unix.AF_INET, "0.0.0.0:7200"}, {unix.AF_INET6, "[::]:7300"},
		{unix.AF_INET6, "[fd00::1]:7400"}, {unix.AF_INET, "10.0.0.1:40000"},
	} {
		s := sockdiag.Socket{ID: conn.ID{Family: at.family, Local: netip.MustParseAddrPort(at.addr)}}
		if err := l.add(s); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		family uint8
		local  string
		want   policy.Directions
	}{
		{unix.AF_INET, "10.0.0.1:7100", in},
		{unix.AF_INET, "10.0.0.2:7100", policy.Both}, // the port has a listener, the address has none
		{unix.AF_INET, "10.0.0.2:7200", in},
		{unix.AF_INET6, "[fd00::2]:7300", in},
		{unix.AF_INET6, "10.0.0.1:7300", in},         // mapped
		{unix.AF_INET, "10.0.0.1:7300", policy.Both}, // [::] makes no AF_INET socket
		{unix.AF_INET6, "[fd00::1]:7400", in},
		{unix.AF_INET6, "10.0.0.1:7100", policy.Both}, // an AF_INET listener makes no mapped one
		{unix.AF_INET, "10.0.0.1:40000", in},
		{unix.AF_INET, "10.0.0.1:40001", out},
		{unix.AF_INET6, "[fd00::1]:60999", out},
		{unix.AF_INET, "10.0.0.1:32767", policy.Both}, // no port that a client gets by itself
		{unix.AF_INET, "10.0.0.1:61000", policy.Both},
	} {
		id := conn.ID{Family: tc.family, Local: netip.MustParseAddrPort(tc.local)}
		if got := l.Directions(&id); got != tc.want {
			t.Errorf("%s in family %d: %s, want %s", tc.local, tc.family, got, tc.want)
		}
	}
}
