// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"testing"
	"time"
)

func TestFigure(t *testing.T) {
	for _, c := range []struct {
		figure Figure
		held   bool
		text   string
	}{
		{exactly("failures", 1, 1), true, "failures: 1, want 1"},
		{exactly("failures", 2, 1), false, "failures: 2, want 1"},
		{atLeast("answers", 8, 8), true, "answers: 8, want at least 8"},
		{atLeast("answers", 7, 8), false, "answers: 7, want at least 8"},
		{slack(Slack).late("failure", 15*time.Second, 15*time.Second), true, "failure: 15 s, want 15 s to 16.5 s"},
		{slack(Slack).late("failure", 15*time.Second-time.Nanosecond, 15*time.Second), false, "failure: 15 s, want 15 s to 16.5 s"},
		{slack(Slack).late("failure", 15*time.Second+Slack, 15*time.Second), true, "failure: 16.5 s, want 15 s to 16.5 s"},
		{slack(Slack).late("failure", 16501*time.Millisecond, 15*time.Second), false, "failure: 16.501 s, want 15 s to 16.5 s"},
		{slack(Slack).late("failure", never, 15*time.Second), false, "failure: never, want 15 s to 16.5 s"},
		{between("gone", never, 0, time.Second), false, "gone: never, want 0 s to 1 s"},
		{between("gone", time.Second, 0, time.Second), true, "gone: 1 s, want 0 s to 1 s"},
		{between("gone", time.Second, 0, never), false, "gone: 1 s, want 0 s to never"},
	} {
		if got := c.figure.Held(); got != c.held {
			t.Errorf("%s: held %v", c.figure, got)
		}
		if got := c.figure.String(); got != c.text {
			t.Errorf("got %q, want %q", got, c.text)
		}
	}
}

func TestNothingMeasuredHoldsNothing(t *testing.T) {
	if (&Result{}).Held() || (&Incident{}).Held() || (&Row{}).Held() {
		t.Error("held")
	}
}
