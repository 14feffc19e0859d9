// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/adopt"
	"github.com/sockhealth/sockhealth/internal/coverage"
	"github.com/sockhealth/sockhealth/internal/loader"
)

// What the last scan, the last canary and adoption know stands where it belongs.
func TestCoverage(t *testing.T) {
	f := fresh()
	f.counters["buffer"] = loader.Counters{Adopted: 21, Released: 22, Drifted: 23}
	f.counters["none"] = loader.Counters{}
	f.report = coverage.Report{
		Ended: time.UnixMilli(1767323045500),
		Policies: map[string]coverage.Count{
			"buffer": {Expected: 8, Unmanaged: map[coverage.Reason]uint64{coverage.MPTCP: 2, coverage.OptionsDrifted: 4}, DriftFound: 5},
			"none":   {},
		},
	}
	f.canary = coverage.Canary{Ended: time.UnixMilli(1767323045000)}
	f.adoption = map[string]adopt.Count{"buffer": {Pending: map[string]uint64{"stuck": 3}}}
	_, body := scrape(t, f.metrics())
	for _, line := range []string{
		`sockhealth_sockets_expected{policy="buffer"} 8`,
		`sockhealth_sockets_unmanaged{policy="buffer",reason="mptcp"} 2`,
		`sockhealth_sockets_unmanaged{policy="buffer",reason="options_drifted"} 4`,
		`sockhealth_sockets_unmanaged{policy="buffer",reason="older"} 0`,
		`sockhealth_coverage_ratio{policy="buffer"} 0.25`,
		`sockhealth_coverage_ratio{policy="none"} 1`,
		`sockhealth_sockets_pending{policy="buffer",wait="stuck"} 3`,
		`sockhealth_connections_adopted_total{policy="buffer"} 21`,
		`sockhealth_connections_released_total{policy="buffer"} 22`,
		`sockhealth_drift_found_total{policy="buffer"} 5`,
		`sockhealth_drift_repaired_total{policy="buffer"} 23`,
		`sockhealth_coverage_last_scan_timestamp_seconds 1.7673230455e+09`,
		`sockhealth_coverage_last_scan_success 1`,
		`sockhealth_canary_success 1`,
		`sockhealth_canary_last_timestamp_seconds 1.767323045e+09`,
	} {
		if !strings.Contains(body, "\n"+line+"\n") {
			t.Errorf("not there: %s", line)
		}
	}
	f.report.Err, f.canary.Err = errors.New("netns 7"), errors.New("no cgroup")
	_, body = scrape(t, f.metrics())
	for _, line := range []string{
		"sockhealth_coverage_last_scan_success 0", "sockhealth_canary_success 0",
		`sockhealth_coverage_ratio{policy="buffer"} 0.25`, `sockhealth_coverage_ratio{policy="none"} NaN`,
	} {
		if !strings.Contains(body, "\n"+line+"\n") {
			t.Errorf("not there: %s", line)
		}
	}
	f.report.Err, f.report.Outdated = nil, true
	_, body = scrape(t, f.metrics())
	for _, line := range []string{
		`sockhealth_coverage_ratio{policy="buffer"} NaN`, `sockhealth_coverage_ratio{policy="none"} NaN`,
		`sockhealth_sockets_expected{policy="buffer"} 0`, `sockhealth_sockets_unmanaged{policy="buffer",reason="mptcp"} 0`,
		`sockhealth_drift_found_total{policy="buffer"} 5`,
	} {
		if !strings.Contains(body, "\n"+line+"\n") {
			t.Errorf("not there: %s", line)
		}
	}
}
