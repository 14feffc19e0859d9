// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"math"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sockhealth/sockhealth/internal/adopt"
	"github.com/sockhealth/sockhealth/internal/coverage"
	"github.com/sockhealth/sockhealth/internal/loader"
)

// Coverage says which connections are bounded, and which are not.
type Coverage interface {
	// Coverage returns what the last scan and the last canary came to.
	Coverage() (coverage.Report, coverage.Canary)
	// Adoption returns what the last round of adoption met, by policy.
	Adoption() map[string]adopt.Count
	// Guarded returns how many connections are guarded now, by policy.
	Guarded() map[string]uint64
}

// covered are the metrics of coverage.
type covered struct {
	expected, unmanaged, ratio, pending *prometheus.Desc
	adopted, released, found, repaired  *prometheus.Desc
	guarded, guards                     *prometheus.Desc
	scanned, scanOK, canary, sent       *prometheus.Desc
}

func newCovered(desc func(name, help string, labels ...string) *prometheus.Desc) covered {
	return covered{
		expected: desc("sockets_expected", "Open connections that the policy names, as the last scan found them.", "policy"),
		unmanaged: desc("sockets_unmanaged",
			"Those of sockets_expected that are not bounded as the policy wants, by reason.", "policy", "reason"),
		ratio: desc("coverage_ratio",
			"Share of sockets_expected that is bounded as the policy wants; 1 where there are none, NaN where that is not known.", "policy"),
		pending: desc("sockets_pending",
			"Managed connections whose options are not all set yet, by what they wait for.", "policy", "wait"),
		guarded: desc("sockets_guarded",
			"Managed connections whose peer does not read and answers, and whose user timeout is longer for that now.", "policy"),
		guards: desc("guards_total", "How often a connection began to be guarded.", "policy"),
		adopted: desc("connections_adopted_total",
			"Connections that came under the policy while they were open.", "policy"),
		released: desc("connections_released_total",
			"Connections that left the policy while they were open.", "policy"),
		found: desc("drift_found_total",
			"Connections whose options a scan found changed behind the programs.", "policy"),
		repaired: desc("drift_repaired_total",
			"Connections whose options adoption found changed behind the programs, and brought in line.", "policy"),
		scanned: desc("coverage_last_scan_timestamp_seconds", "When the last scan of coverage ended, 0 before the first."),
		scanOK:  desc("coverage_last_scan_success", "1 where the last scan of coverage saw every namespace."),
		canary: desc("canary_success",
			"1 where the programs bounded the last canary connection, 0 where they did not or none could be made."),
		sent: desc("canary_last_timestamp_seconds", "When the last canary connection was tried, 0 before the first."),
	}
}

func (c *covered) describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.expected, c.unmanaged, c.ratio, c.pending, c.adopted, c.released, c.found, c.repaired,
		c.guarded, c.guards,
		c.scanned, c.scanOK, c.canary, c.sent,
	} {
		ch <- d
	}
}

// policy sends the series of one policy.
func (c *covered) policy(s sink, name string, k *loader.Counters, r *coverage.Report, adoption map[string]adopt.Count) {
	count := r.Policies[name]
	if r.Outdated { // nothing of it holds for this policy but what ever was
		count.Expected, count.Unmanaged = 0, nil
	}
	ratio := math.NaN()
	switch {
	case !r.Known(name):
	case count.Expected == 0:
		ratio = 1
	default:
		ratio = float64(count.Bounded()) / float64(count.Expected)
	}
	s.gauge(c.expected, float64(count.Expected), name)
	s.gauge(c.ratio, ratio, name)
	for _, reason := range coverage.Reasons() {
		s.gauge(c.unmanaged, float64(count.Unmanaged[reason]), name, string(reason))
	}
	for _, wait := range loader.Waits() {
		s.gauge(c.pending, float64(adoption[name].Pending[wait.String()]), name, wait.String())
	}
	s.counter(c.adopted, k.Adopted, name)
	s.counter(c.released, k.Released, name)
	s.counter(c.found, count.DriftFound, name)
	s.counter(c.repaired, k.Drifted, name)
	s.counter(c.guards, k.Guarded, name)
}

// checks sends how the checks themselves went.
func (c *covered) checks(s sink, r *coverage.Report, canary *coverage.Canary) {
	at := 0.0
	if !r.Ended.IsZero() {
		at = float64(r.Ended.UnixMilli()) / 1e3
	}
	s.gauge(c.scanned, at)
	s.gauge(c.scanOK, boolean(!r.Ended.IsZero() && r.Err == nil))
	at = 0
	if !canary.Ended.IsZero() {
		at = float64(canary.Ended.UnixMilli()) / 1e3
	}
	s.gauge(c.sent, at)
	s.gauge(c.canary, boolean(!canary.Ended.IsZero() && canary.Err == nil))
}
