// SPDX-License-Identifier: Apache-2.0

package metrics

import "github.com/prometheus/client_golang/prometheus"

// Health says which parts of the agent do what they are for.
type Health interface {
	Parts() Parts
}

// Parts are those whose failure no other figure shows. What this kernel does not give,
// or the policy does not ask for, has not failed.
type Parts struct {
	Attached bool // the programs are on their cgroup
	Unpinned int  // pins that somebody has removed
	// Adoption, Guard and Silence are why the last round of each was not complete.
	Adoption, Guard, Silence error
}

// parts are the metrics of Parts.
type parts struct {
	attached, unpinned, adoption, guard, silence *prometheus.Desc
}

func newParts(desc func(name, help string, labels ...string) *prometheus.Desc) parts {
	return parts{
		attached: desc("programs_attached", "1 where the programs are on their cgroup: connections that open now are bounded."),
		unpinned: desc("pins_missing", "Pins that were removed since the agent made them: a stop would leave connections unbounded."),
		adoption: desc("adoption_last_round_success", "0 where older connections could not all be brought under the policy, or their state is not known."),
		guard:    desc("guard_last_pass_success", "0 where connections whose peer does not read may be ended by their user timeout."),
		silence:  desc("silence_last_pass_success", "0 where the silence watch could not look at every connection."),
	}
}

func (p *parts) describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{p.attached, p.unpinned, p.adoption, p.guard, p.silence} {
		ch <- d
	}
}

func (p *parts) collect(s sink, now Parts) {
	s.gauge(p.attached, boolean(now.Attached))
	s.gauge(p.unpinned, float64(now.Unpinned))
	s.gauge(p.adoption, boolean(now.Adoption == nil))
	s.gauge(p.guard, boolean(now.Guard == nil))
	s.gauge(p.silence, boolean(now.Silence == nil))
}
