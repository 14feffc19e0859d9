// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"time"

	"github.com/sockhealth/sockhealth/internal/api"
	"github.com/sockhealth/sockhealth/internal/policy"
)

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
	strike      bool          // the connection lived, and its application got an error
	failed      bool
	why         string

	// Of a close by the agent.
	closed  bool
	asked   time.Duration // when it was asked for, at the earliest
	at      time.Duration // when the application heard of it
	lasted  time.Duration // from the judgement's first look to its last
	probe   policy.Probe
	over    time.Duration // by how much it was later than call timeout and window
	besides []beside      // what was waited for beside that
	record  *api.VerdictEvent
}

// beyond is by how much a close was later than what was waited for.
func (o *outcome) beyond() time.Duration {
	over := o.over
	for _, b := range o.besides {
		over -= b.took
	}
	return over
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
