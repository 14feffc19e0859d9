// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"net/netip"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/policy"
)

// The figures of the call incident rest on these.
func TestPolicyOfTheCalls(t *testing.T) {
	cases := callCases()
	var servers []lab.Host
	for i := range len(cases) + 1 {
		servers = append(servers, lab.Host{Addr4: netip.AddrFrom4([4]byte{10, 91, byte(2 + i), 2})})
	}
	p, err := policy.Parse("policy.yaml", []byte(callPolicy(cases, servers)))
	if err != nil {
		t.Fatal(err)
	}
	names := make(map[string]bool)
	for i, s := range servers {
		peer, ok := p.Match(netip.AddrPortFrom(s.Addr4, callPort), 40000, conn.Outbound)
		if !ok {
			t.Errorf("server %d is not in the policy", i)
			continue
		}
		names[peer.Name] = true
		if peer.Probe.Window != callWindow || peer.Probe.Attempts != callAttempts {
			t.Errorf("server %d: probe %+v", i, peer.Probe)
		}
		if end := callPatience + callAgain + 2*time.Duration(maxLate); peer.Options.UserTimeout < end {
			t.Errorf("server %d: the kernel ends connections after %s, in the midst of the play", i, peer.Options.UserTimeout)
		}
		asks := i < len(cases) && cases[i].asks
		if asks != (peer.AppProbe != nil) {
			t.Errorf("server %d: application probe %+v", i, peer.AppProbe)
		}
		if a := peer.AppProbe; a != nil && (a.Port != healthPort || a.Timeout != appTimeout || !a.CloseHung) {
			t.Errorf("server %d: application probe %+v", i, a)
		}
		if _, ok := p.Match(netip.AddrPortFrom(s.Addr4, healthPort), 40000, conn.Outbound); ok {
			t.Errorf("server %d: the health port is in the policy", i)
		}
	}
	if len(names) != len(servers) {
		t.Errorf("%d entries for %d servers", len(names), len(servers))
	}
}
