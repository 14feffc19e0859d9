// SPDX-License-Identifier: Apache-2.0

package agent

import "github.com/sockhealth/sockhealth/internal/verdict"

// fill puts into a result what its record has besides the verdict: which policy, what
// the decision was made on, the probes, and what became of the request.
func (w *weighing) fill(r *Result) {
	r.Revision = w.revision
	if w.peer != nil {
		r.Policy = w.peer.Name
	}
	r.Delivery, r.Frozen = w.delivered(), w.frozen
	if !w.undecided {
		r.Basis = w.in.Basis(w.began)
	}
	if w.j != nil {
		r.Attempts = w.j.attempts.told(w.began)
	}
}

// delivered returns what became of the request of a call, "" where none was made.
func (w *weighing) delivered() verdict.Delivery {
	if !OfCall(w.call.reporter) {
		return ""
	}
	last := w.in.After
	if !w.in.Probe.Done {
		last = w.in.Before
	}
	return verdict.Delivered(w.report, last, w.in.Sent)
}
