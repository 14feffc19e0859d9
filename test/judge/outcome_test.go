// SPDX-License-Identifier: Apache-2.0

package judge

import "time"

// outcome is what came of a play.
type outcome struct {
	number   int
	scenario *scenario
	variant  variant

	// What the agent said.
	given    string // its verdict, the reason in brackets
	action   string
	delivery string
	inFlight bool
	began    time.Duration // when the report was sent
	answered time.Duration // and the verdict in
	// What is true.
	lives, dead bool          // what the connection was
	reset       bool          // the peer, or who speaks for it, has ended it
	arrived     bool          // the data that should
	toClose     time.Duration // from the report until the application heard of the end; 0: it did not
	over        time.Duration // by how much that was later than the window
	strike      bool          // the connection lived, and its application got an error
	failed      bool
	why         string
}

// took takes the answer to a report.
func (o *outcome) took(a answer) {
	r := a.Response.Results[0]
	o.given = verdictOf(r.Verdict, r.Reason)
	o.action, o.delivery, o.inFlight = r.Action, r.Evidence.Delivery, r.Evidence.InFlight
	o.began, o.answered = time.Duration(a.Began), time.Duration(a.Answered)
}

// verdictOf is a verdict with its reason.
func verdictOf(word, reason string) string {
	if reason == "" {
		return word
	}
	return word + " (" + reason + ")"
}
