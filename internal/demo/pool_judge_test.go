// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func at(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// failedAt, wellAt and hangsAt are requests.
func failedAt(sent, took float64) Request {
	return Request{Sent: at(sent), Took: at(took), Err: "timeout", Local: "10.91.1.2:40000"}
}

func wellAt(sent float64) Request {
	return Request{Sent: at(sent), Took: at(0.002), Server: "replacement", Local: "10.91.1.2:40004"}
}

func hangsAt(sent float64) Request { return Request{Sent: at(sent), Took: never} }

// wellFrom are requests that are answered, one every 5 s until the end.
func wellFrom(sent float64) []Request {
	var all []Request
	for ; at(sent) < poolWatch; sent += 5.002 {
		all = append(all, wellAt(sent))
	}
	return all
}

func after(first Request, rest ...Request) []Request { return append([]Request{first}, rest...) }

// asMeasured are records of the six runs in which every figure holds.
func asMeasured() []poolRecord {
	return []poolRecord{
		{requests: []Request{failedAt(3, 30.001), failedAt(38.002, 30.001), hangsAt(73.003)}, gone: never, stale: 2},
		{requests: after(failedAt(3, 20.45), wellFrom(28.45)...), gone: at(23.46)},
		{requests: wellFrom(16), gone: at(15.2)},
		{requests: after(failedAt(3, 15.2), wellFrom(23.2)...), gone: at(18.21)},
		{requests: wellFrom(16), gone: at(15.3)},
		{requests: after(failedAt(3, 2.001), wellFrom(10.01)...), gone: at(9.4)},
	}
}

// judged judges the six records.
func judged(recs []poolRecord) *Incident {
	incident := newPoolIncident()
	for i, v := range poolVariants() {
		incident.Rows = append(incident.Rows, v.judge(recs[i]))
	}
	return incident
}

func TestTheIncidentsOwnFiguresHold(t *testing.T) {
	incident := judged(asMeasured())
	for _, row := range incident.Rows {
		for _, f := range row.Figures {
			if !f.Held() {
				t.Errorf("%s, %s: %s", row.Case, row.Pool.First, f)
			}
		}
	}
	if !incident.Held() {
		t.Error("not held")
	}
}

// TestLateTimers: how late the machine's timers were comes on top of the slack,
// and means nothing any more when they were very late.
func TestLateTimers(t *testing.T) {
	recs := asMeasured()
	recs[0].requests[0].Took = at(33)
	if judged(recs).Rows[0].Held() {
		t.Error("3 s late held on a machine that was not")
	}
	if recs[0].late = at(2); !judged(recs).Rows[0].Held() {
		t.Error("3 s late did not hold on a machine that was 2 s late itself")
	}
	if recs[0].late = at(6); judged(recs).Rows[0].Held() {
		t.Error("held on a machine that was 6 s late")
	}
}

// Each of these must break the figure named, in that row and no other.
func TestWhatMustNotHold(t *testing.T) {
	const noAgent, bound20, bound15, only3, only16, reports = 0, 1, 2, 3, 4, 5
	for name, c := range map[string]struct {
		row    int
		change func(*poolRecord)
		figure string
	}{
		"no request at all":    {noAgent, func(r *poolRecord) { r.requests = nil }, "first request"},
		"one is answered":      {noAgent, func(r *poolRecord) { r.requests[2] = wellAt(73) }, "answers"},
		"it fails too early":   {noAgent, func(r *poolRecord) { r.requests[1].Took = at(15) }, "shortest failure"},
		"it fails too late":    {noAgent, func(r *poolRecord) { r.requests[0].Took = at(32) }, "longest failure"},
		"too few fail":         {noAgent, func(r *poolRecord) { r.requests = r.requests[:1] }, "failures"},
		"the bound is early":   {bound20, func(r *poolRecord) { r.requests[0].Took = at(19.9) }, "failure after"},
		"a second one fails":   {bound20, func(r *poolRecord) { r.requests[1].Err = "timeout" }, "failures"},
		"well too late":        {bound20, func(r *poolRecord) { r.requests[1].Sent = at(29.6) }, "well from"},
		"gone too late":        {bound15, func(r *poolRecord) { r.gone = at(16.001) }, "all stale connections gone"},
		"one fails at 16 s":    {bound15, func(r *poolRecord) { r.requests[0].Err = "timeout" }, "failures"},
		"begins too late":      {bound15, func(r *poolRecord) { r.requests = wellFrom(17.6) }, "first request"},
		"no bound at all":      {only3, func(r *poolRecord) { r.requests[0].Took = at(30) }, "failure after"},
		"the first hangs":      {only3, func(r *poolRecord) { r.requests = r.requests[:1]; r.requests[0] = hangsAt(3) }, "failure after"},
		"another fails":        {only3, func(r *poolRecord) { r.requests[0].Err = ""; r.requests[3].Err = "timeout" }, "failure after"},
		"gone after the next":  {only3, func(r *poolRecord) { r.gone = at(23.3) }, "all stale connections gone"},
		"never gone":           {only16, func(r *poolRecord) { r.gone = never }, "all stale connections gone"},
		"answered slowly":      {only16, func(r *poolRecord) { r.requests[4].Took = at(1.6) }, "slowest answer"},
		"hangs in the end":     {only16, func(r *poolRecord) { r.requests = append(r.requests[:8], hangsAt(56)) }, "slowest answer"},
		"too few answers":      {only16, func(r *poolRecord) { r.requests = r.requests[:5] }, "answers"},
		"reported, kept":       {reports, func(r *poolRecord) { r.gone = at(15.2) }, "all stale connections gone"},
		"reported, next fails": {reports, func(r *poolRecord) { r.requests[1].Err = "timeout" }, "failures"},
		"only two requests":    {reports, func(r *poolRecord) { r.requests = r.requests[:2] }, "answers"},
		"no next request":      {reports, func(r *poolRecord) { r.requests = r.requests[:1] }, "all stale connections gone"},
	} {
		recs := asMeasured()
		c.change(&recs[c.row])
		incident := judged(recs)
		for i, row := range incident.Rows {
			if held := row.Held(); held != (i != c.row) {
				t.Errorf("%s: row %d held %v", name, i, held)
			}
		}
		broken := slices.ContainsFunc(incident.Rows[c.row].Figures, func(f Figure) bool {
			return f.Name == c.figure && !f.Held()
		})
		if !broken {
			t.Errorf("%s: %q held", name, c.figure)
		}
		if incident.Held() {
			t.Errorf("%s: all held", name)
		}
	}
}

func TestMeasuredInWords(t *testing.T) {
	v := poolVariants()[3]
	for want, rec := range map[string]poolRecord{
		"no request was sent":                                 {gone: never},
		"the first request hangs":                             {requests: []Request{hangsAt(3)}, gone: never},
		"4 of 4 still there, 1 of 2 requests succeed":         {requests: []Request{wellAt(3), hangsAt(8)}, gone: never, stale: 4},
		"2 of 3 requests failed after 30.0 s":                 {requests: []Request{wellAt(3), failedAt(8, 30), failedAt(43, 30)}, gone: never},
		"1 of 2 requests failed after 30.0 s":                 {requests: []Request{wellAt(3), failedAt(8, 30)}, gone: never},
		"1 of 1 requests failed after 30.0 s":                 {requests: []Request{failedAt(3, 30)}, gone: never},
		"1 of 1 requests failed after 30.0 s, one more hangs": {requests: []Request{failedAt(3, 30), hangsAt(38)}, gone: never},
	} {
		if got := v.measured(rec); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestRecordTakesTheClientsEvents(t *testing.T) {
	const fault = 100 * time.Second
	rec := poolRecord{gone: never}
	for _, e := range []event{
		{Kind: eventDone, At: fault}, // of nothing
		{Kind: eventSent, At: fault + at(3)},
		{Kind: eventDone, At: fault + at(5), Err: "timeout", Local: "a"},
		{Kind: eventSent, At: fault + at(10)},
		{Kind: eventDone, At: fault + at(10.5), Server: "peer", Local: "b"},
		{Kind: eventSent, At: fault + at(74)},
		{Kind: eventDone, At: fault + at(75.1), Server: "replacement", Local: "c"},
		{Kind: eventSent, At: fault + at(81)},
	} {
		rec.add(e, fault)
	}
	if len(rec.requests) != 3 {
		t.Fatalf("%d requests", len(rec.requests))
	}
	if r := rec.requests[0]; !r.failed() || r.Sent != at(3) || r.Took != at(2) || r.Local != "a" {
		t.Errorf("first: %+v", r)
	}
	if r := rec.requests[1]; !r.failed() || !strings.Contains(r.Err, `"peer"`) {
		t.Errorf("an answer from beyond the drop is none: %+v", r)
	}
	if r := rec.requests[2]; !r.hanging() {
		t.Errorf("after the watch: %+v", r)
	}
}
