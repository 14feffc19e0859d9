// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/sockhealth/sockhealth/report"
)

func TestCallRecordTakesTheClientsEvents(t *testing.T) {
	const zero = 100 * time.Second
	results := []report.Result{{Verdict: "dead_path"}}
	rec := callRecord{resumed: never}
	c := callCase{
		channels: []callChannel{{name: "channel"}, {name: "sibling", kept: true}},
		calls:    []callStep{{name: "call"}},
		reports:  callReports{n: 1},
	}
	for i, step := range []struct {
		event          callEvent
		settled, again bool
	}{
		{callEvent{Kind: eventDone, Name: "of nothing", At: zero}, false, false},
		{callEvent{Kind: eventSent, Name: "call", At: zero, Local: "a"}, false, false},
		{callEvent{Kind: eventReporting, Name: "call", At: zero + at(2)}, false, false},
		{callEvent{Kind: eventDone, Name: "call", At: zero + at(5), Err: "ECONNABORTED", Late: at(0.3)}, false, false},
		{callEvent{Kind: eventReported, Name: "call", At: zero + at(5.1), Results: results, Late: at(0.2)}, true, false},
		{callEvent{Kind: eventSent, Name: again("sibling"), At: zero + at(8), Local: "b"}, true, false},
		{callEvent{Kind: eventDone, Name: again("sibling"), At: zero + at(8.1), Server: "peer"}, true, true},
	} {
		rec.add(step.event, zero)
		if rec.settled(&c) != step.settled || rec.worksAgain(&c) != step.again {
			t.Errorf("after event %d: settled %v, works again %v", i, rec.settled(&c), rec.worksAgain(&c))
		}
	}
	want := callRecord{
		requests: []Request{
			{Name: "call", Took: at(5), Err: "ECONNABORTED", Local: "a"},
			{Name: again("sibling"), Sent: at(8), Took: at(0.1), Server: "peer", Local: "b"},
		},
		reports: []Report{{Call: "call", Sent: at(2), Took: at(3.1), Results: results}},
		resumed: never, late: at(0.3),
	}
	// Seconds in floating point are a nanosecond off.
	near := cmp.Comparer(func(a, b time.Duration) bool { return (a - b).Abs() < time.Microsecond })
	if diff := cmp.Diff(want, rec, near, cmp.AllowUnexported(callRecord{})); diff != "" {
		t.Error(diff)
	}
}
