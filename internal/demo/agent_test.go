// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/policy"
)

// The figures of the runs with sockhealth rest on these.
func TestPolicyOfTheDemo(t *testing.T) {
	p, err := policy.Parse("policy.yaml", []byte(poolPolicy))
	if err != nil {
		t.Fatal(err)
	}
	want := conn.Options{
		KeepAlive: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 5, UserTimeout: 15 * time.Second,
	}
	for _, addr := range []string{"10.91.2.2:7100", "10.91.3.2:7100"} {
		peer, ok := p.Match(netip.MustParseAddrPort(addr), 40000, conn.Outbound)
		if !ok {
			t.Errorf("%s is not in the policy", addr)
			continue
		}
		if diff := cmp.Diff(want, peer.Options); diff != "" {
			t.Errorf("%s: %s", addr, diff)
		}
		if peer.Probe.Window != 3*time.Second || peer.Probe.Attempts != 5 {
			t.Errorf("%s: probe %+v", addr, peer.Probe)
		}
	}
}
