// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"slices"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/policy"
)

// TestBuckets: what takes the default window falls between bounds that are close, the
// longest judgement that a policy allows below the last, and there are not many.
func TestBuckets(t *testing.T) {
	const near, most = 0.05, 25
	bounds := verdictBuckets()
	if !slices.IsSorted(bounds) || len(bounds) > most {
		t.Errorf("%d bounds, want at most %d, in order: %v", len(bounds), most, bounds)
	}
	probe := parse(t, "").Probe
	took := (probe.Window + 5*time.Millisecond).Seconds()
	i, _ := slices.BinarySearch(bounds, took)
	if i == 0 || i == len(bounds) || bounds[i]-bounds[i-1] > near+1e-9 {
		t.Errorf("a verdict after %v s falls into %v", took, bounds[max(0, i-1):min(i+1, len(bounds))])
	}
	longest := parse(t, ", probe: {window: 1m}, app_probe: {http: {}, timeout: 1m}")
	if took := (3*longest.Probe.Window + longest.AppProbe.Timeout).Seconds(); took > bounds[len(bounds)-1] {
		t.Errorf("a verdict after %v s is above all bounds", took)
	}
	for _, more := range []string{", probe: {window: 61s}", ", app_probe: {http: {}, timeout: 61s}"} {
		if _, err := policy.Parse("test.yaml", []byte(policyWith(more))); err == nil {
			t.Errorf("%s is taken: are there bounds for it?", more)
		}
	}
}

// parse returns the only entry of a policy.
func parse(t *testing.T, more string) *policy.Peer {
	t.Helper()
	p, err := policy.Parse("test.yaml", []byte(policyWith(more)))
	if err != nil {
		t.Fatal(err)
	}
	return &p.Peers[0]
}

func policyWith(more string) string {
	return "version: 1\npeers: [{name: a, cidrs: [10.0.0.0/8]" + more + "}]\n"
}
