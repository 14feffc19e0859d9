// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/sockhealth/sockhealth/report"
)

func TestCallsMeasuredInWords(t *testing.T) {
	recs := callsAsMeasured()
	var got []string
	for i, c := range callCases() {
		got = append(got, c.measured(recs[i]))
	}
	want := []string{
		"dead_path: closed, ECONNABORTED at 5.0 s, other answers",
		"dead_path: closed, ECONNABORTED at 5.0 s, sibling answers, 1 probe",
		"2 x dead_path: closed, ECONNABORTED at 5.0 s, 5 probes, 1 reset",
		"nothing to judge, 0 SYNs",
		"alive_hung (app: silent): closed, ECONNABORTED at 5.0 s",
		"alive_slow: kept, answer at 6.0 s",
		"alive_slow: kept, answer at 6.0 s",
		"alive: kept, answer at 6.0 s, error at 1.0 s",
		"alive_slow (app: answered): kept, answer at 6.0 s",
		"alive_slow (app: no_connection): kept, answer at 6.0 s",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestWhatWentWrongInWords(t *testing.T) {
	two := told("call", 2, 3, "dead_path", "failed", "")
	two.Results = append(two.Results, report.Result{Verdict: "gone", Action: "none"})
	c := callCases()[caseDead]
	for want, rec := range map[string]callRecord{
		"no report, call not sent, other gone": {},
		"report not answered, call hangs, other does not answer": {
			requests: []Request{endedAt("call", 0, -1, "")}, reports: []Report{{Took: never}}, kept: map[string]bool{"other": true},
		},
		"report refused, EPIPE at 1.0 s, other gone": {
			requests: []Request{endedAt("call", 0, 1, "EPIPE")}, reports: []Report{{Err: "too many"}},
		},
		"dead_path: failed, gone: kept, nothing to judge, call not sent, other gone": {
			reports: []Report{two, {}},
		},
	} {
		for i := range rec.requests {
			if rec.requests[i].Took < 0 {
				rec.requests[i].Took = never
			}
		}
		if got := c.measured(rec); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
