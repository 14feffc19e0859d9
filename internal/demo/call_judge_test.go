// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/report"
)

// Indices of the cases.
const (
	caseDead = iota
	caseOne
	caseTwice
	caseNone
	caseAsked
	caseStopped
	caseSlow
	caseError
	case500
	caseRefused
)

// answeredAt is a call that was answered, endedAt one that ended with an error.
func answeredAt(name string, sent, took float64) Request {
	return Request{Name: name, Sent: at(sent), Took: at(took), Server: "peer", Local: "10.91.1.2:40000"}
}

func endedAt(name string, sent, took float64, err string) Request {
	return Request{Name: name, Sent: at(sent), Took: at(took), Err: err, Local: "10.91.1.2:40000"}
}

// told is a report that was answered with one result.
func told(call string, sent, took float64, verdict, action, app string) Report {
	return Report{Call: call, Sent: at(sent), Took: at(took), Results: []report.Result{{
		Verdict: verdict, Action: action, Evidence: report.Evidence{CallMS: 2001, AppProbe: app},
	}}}
}

// aliveRecord is that of a slow call, on a socket that stays.
func aliveRecord(verdict, app string, more ...Request) callRecord {
	return callRecord{
		requests: append([]Request{answeredAt("call", 0.001, 6.002)}, append(more, answeredAt(again("channel"), 8.1, 0.003))...),
		reports:  []Report{told("call", 2.003, 0.02, verdict, "none", app)},
		kept:     map[string]bool{"channel": true},
		resumed:  never,
	}
}

// deadRecord is that of a call on a socket that was closed.
func deadRecord(verdict, app string, more ...Request) callRecord {
	return callRecord{
		requests: append([]Request{endedAt("call", 0.001, 5.04, "ECONNABORTED")}, more...),
		reports:  []Report{told("call", 2.003, 3.03, verdict, "closed", app)},
		kept:     map[string]bool{"channel": false},
		resumed:  never,
	}
}

// callsAsMeasured are records of the cases in which every figure holds.
func callsAsMeasured() []callRecord {
	recs := []callRecord{
		deadRecord("dead_path", "", answeredAt(again("other"), 8.1, 0.003)),
		deadRecord("dead_path", "", answeredAt(again("sibling"), 8.1, 0.003)),
		deadRecord("dead_path", "", endedAt("second call", 2.001, 3.04, "ECONNABORTED")),
		{reports: []Report{{Sent: at(0.001), Took: at(0.002)}}, counts: []int{0}, control: 1, resumed: never},
		deadRecord("alive_hung", "silent"),
		aliveRecord("alive_slow", ""),
		aliveRecord("alive_slow", ""),
		aliveRecord("alive", "", endedAt("refused call", 1.001, 0.002, callRefusal)),
		aliveRecord("alive_slow", "answered"),
		aliveRecord("alive_slow", "no_connection"),
	}
	recs[caseDead].kept["other"] = true
	recs[caseOne].kept["sibling"] = true
	recs[caseOne].counts = []int{1}
	recs[caseTwice].reports = append(recs[caseTwice].reports, told("second call", 4.002, 1.031, "dead_path", "closed", ""))
	recs[caseTwice].counts = []int{5, 1}
	recs[caseStopped].resumed = at(6.001)
	return recs
}

// judgedCalls judges the records of all cases.
func judgedCalls(recs []callRecord) *Incident {
	incident := newCallIncident()
	incident.Watched = at(8.2)
	for i, c := range callCases() {
		incident.Rows = append(incident.Rows, c.judge(recs[i]))
	}
	return incident
}

func TestTheCallsOwnFiguresHold(t *testing.T) {
	incident := judgedCalls(callsAsMeasured())
	for _, row := range incident.Rows {
		for _, f := range row.Figures {
			if !f.Held() {
				t.Errorf("%s: %s", row.Case, f)
			}
		}
	}
	if !incident.Held() {
		t.Error("not held")
	}
}

// breach is a change of one case's record that must break the figure named.
type breach struct {
	row    int
	change func(*callRecord)
	figure string
}

func request(n int, change func(*Request)) func(*callRecord) {
	return func(r *callRecord) { change(&r.requests[n]) }
}

func result(n int, change func(*report.Result)) func(*callRecord) {
	return func(r *callRecord) { change(&r.reports[n].Results[0]) }
}

func counted(n, value int) func(*callRecord) { return func(r *callRecord) { r.counts[n] = value } }

// mustBreak sees each break its figure, in that row and no other.
func mustBreak(t *testing.T, breaches map[string]breach) {
	t.Helper()
	for name, c := range breaches {
		recs := callsAsMeasured()
		c.change(&recs[c.row])
		incident := judgedCalls(recs)
		for i, row := range incident.Rows {
			if held := row.Held(); held != (i != c.row) {
				t.Errorf("%s: row %d held %v", name, i, held)
			}
		}
		broken := slices.ContainsFunc(incident.Rows[c.row].Figures, func(f Figure) bool {
			return f.Name == c.figure && !f.Held()
		})
		if !broken {
			t.Errorf("%s: %q held, or is no figure", name, c.figure)
		}
		if incident.Held() {
			t.Errorf("%s: all held", name)
		}
	}
}

const channelKept = "channel still connected"

func TestWhatMustNotHoldOfTheDead(t *testing.T) {
	const (
		abort = "call ended by ECONNABORTED"
		dead  = "answers of verdict dead_path, action closed"
		hung  = "answers of verdict alive_hung, action closed, application silent"
		asked = "report answered"
	)
	mustBreak(t, map[string]breach{
		"no call":                  {caseDead, func(r *callRecord) { r.requests = nil }, abort},
		"the call hangs":           {caseDead, request(0, func(q *Request) { q.Took = never }), abort},
		"closed too early":         {caseDead, request(0, func(q *Request) { q.Took = at(4.99) }), abort},
		"closed too late":          {caseDead, request(0, func(q *Request) { q.Took = at(6.51) }), abort},
		"ended by the bound":       {caseDead, request(0, func(q *Request) { q.Err = "ETIMEDOUT" }), abort},
		"ended by the peer":        {caseDead, request(0, func(q *Request) { q.Err = "ECONNRESET" }), abort},
		"answered by the dead":     {caseDead, request(0, func(q *Request) { q.Err = "" }), abort},
		"not reported":             {caseDead, func(r *callRecord) { r.reports = nil }, "reports"},
		"report without an answer": {caseDead, func(r *callRecord) { r.reports[0].Took = never }, asked},
		"report refused":           {caseDead, func(r *callRecord) { r.reports[0].Err = "too many" }, dead},
		"nothing was judged":       {caseDead, func(r *callRecord) { r.reports[0].Results = nil }, dead},
		"two were judged":          {caseDead, func(r *callRecord) { r.reports[0].Results = append(r.reports[0].Results, r.reports[0].Results[0]) }, dead},
		"judged too early":         {caseDead, func(r *callRecord) { r.reports[0].Took = at(2.9) }, asked},
		"judged too late":          {caseDead, func(r *callRecord) { r.reports[0].Took = at(4.6) }, asked},
		"condemned but not closed": {caseDead, result(0, func(s *report.Result) { s.Action = "failed" }), dead},
		"spared":                   {caseDead, result(0, func(s *report.Result) { s.Verdict = "alive_slow" }), dead},
		"closed in word only":      {caseDead, func(r *callRecord) { r.kept["channel"] = true }, channelKept},
		"dialled":                  {caseNone, counted(0, 1), "SYNs to the peer at the router"},
		"a counter that cannot":    {caseNone, func(r *callRecord) { r.control = 0 }, "the same once the client dials"},
		"a socket out of nowhere": {caseNone, func(r *callRecord) {
			r.reports[0].Results = []report.Result{{Verdict: "gone", Action: "none", Evidence: report.Evidence{CallMS: 2000}}}
		}, "answers of an empty list"},
		"hung but kept":  {caseAsked, func(r *callRecord) { r.kept["channel"] = true }, channelKept},
		"not asked":      {caseAsked, result(0, func(s *report.Result) { s.Evidence.AppProbe = "" }), hung},
		"not waited for": {caseAsked, request(0, func(q *Request) { q.Took = at(4.5) }), abort},
	})
}

func TestWhatMustNotHoldOfTwo(t *testing.T) {
	const (
		dead  = "answers of verdict dead_path, action closed"
		asked = "report answered"
		age   = "age of the call when it was reported"
	)
	mustBreak(t, map[string]breach{
		"the other peer's went, too": {caseDead, func(r *callRecord) { r.kept["other"] = false }, "other still connected"},
		"the other peer's is broken": {caseDead, request(1, func(q *Request) { q.Err = "EPIPE" }), "answer again on other"},
		"the other peer's was idle":  {caseDead, func(r *callRecord) { r.requests = r.requests[:1] }, "answer again on other"},
		"the sibling went, too":      {caseOne, func(r *callRecord) { r.kept["sibling"] = false }, "sibling still connected"},
		"the sibling was not probed": {caseOne, counted(0, 0), "probes on sibling at the router"},
		"the sibling hangs":          {caseOne, request(1, func(q *Request) { q.Took = never }), "answer again on sibling"},
		"two probe runs":             {caseTwice, counted(0, 7), "probes on channel at the router"},
		"no probe run":               {caseTwice, counted(0, 0), "probes on channel at the router"},
		"two closes":                 {caseTwice, counted(1, 2), "resets on channel at the router"},
		"nothing counted":            {caseTwice, func(r *callRecord) { r.counts = nil }, "resets on channel at the router"},
		"only one is told":           {caseTwice, func(r *callRecord) { r.reports[1].Took = never }, dead},
		"the second is another's":    {caseTwice, result(1, func(s *report.Result) { s.Verdict = "gone" }), dead},
		"the second starts anew":     {caseTwice, func(r *callRecord) { r.reports[1].Took = at(3.02) }, asked},
		"weighed by the first's age": {caseTwice, result(1, func(s *report.Result) { s.Evidence.CallMS = 4001 }), age},
		"weighed by no age":          {caseTwice, result(1, func(s *report.Result) { s.Evidence.CallMS = 0 }), age},
	})
}

func TestWhatMustNotHoldOfTheLiving(t *testing.T) {
	const (
		answer = "call answered"
		slow   = "answers of verdict alive_slow, action none"
		asked  = "report answered"
	)
	mustBreak(t, map[string]breach{
		"stopped and closed":  {caseStopped, func(r *callRecord) { r.kept["channel"] = false }, channelKept},
		"never went on":       {caseStopped, func(r *callRecord) { r.resumed = never }, "process goes on"},
		"was not stopped":     {caseStopped, request(0, func(q *Request) { q.Took = at(5.9) }), answer},
		"lies there for long": {caseStopped, request(0, func(q *Request) { q.Took = at(7.6) }), answer},
		"stopped, condemned":  {caseStopped, result(0, func(s *report.Result) { s.Verdict = "alive_hung" }), slow},
		"slow and closed":     {caseSlow, func(r *callRecord) { r.kept["channel"] = false }, channelKept},
		"no answer":           {caseSlow, request(0, func(q *Request) { q.Took = never }), answer},
		"an abort for answer": {caseSlow, request(0, func(q *Request) { q.Err = "ECONNABORTED" }), answer},
		"was not slow":        {caseSlow, request(0, func(q *Request) { q.Took = at(1) }), answer},
		"breaks afterwards":   {caseSlow, request(1, func(q *Request) { q.Err = "ECONNRESET" }), "answer again on channel"},
		"unsure for long":     {caseSlow, func(r *callRecord) { r.reports[0].Took = at(4.6) }, asked},
		"the error was none":  {caseError, request(1, func(q *Request) { q.Err = "" }), "refused call answered with an error"},
		"probed all the same": {caseError, result(0, func(s *report.Result) { s.Verdict = "alive_slow" }), "answers of verdict alive, action none"},
		"500 is death":        {case500, result(0, func(s *report.Result) { s.Verdict, s.Action = "alive_hung", "closed" }), slow + ", application answered"},
		"500 is no answer":    {case500, result(0, func(s *report.Result) { s.Evidence.AppProbe = "no_connection" }), slow + ", application answered"},
		"refusal is silence":  {caseRefused, result(0, func(s *report.Result) { s.Evidence.AppProbe = "silent" }), slow + ", application no_connection"},
		"timers very late":    {caseSlow, func(r *callRecord) { r.late = at(6) }, punctual(0).Name},
	})
}

// Every figure of every case must be able not to hold.
func TestNothingSeenHoldsNothing(t *testing.T) {
	for _, c := range callCases() {
		row := c.judge(callRecord{resumed: never})
		for _, f := range row.Figures {
			// What is required not to be is not there either.
			if f.Held() && f.Max != 0 && f.Name != punctual(0).Name {
				t.Errorf("%s: %s", c.name, f)
			}
			if math.IsInf(f.Max, 1) && f.Min <= 0 {
				t.Errorf("%s: %q always holds", c.name, f.Name)
			}
		}
		if row.Held() {
			t.Errorf("%s: held", c.name)
		}
	}
}

func TestLateTimersOfCalls(t *testing.T) {
	recs := callsAsMeasured()
	recs[caseDead].requests[0].Took, recs[caseDead].reports[0].Took = at(7), at(5)
	if judgedCalls(recs).Rows[caseDead].Held() {
		t.Error("2 s late held on a machine that was not")
	}
	if recs[caseDead].late = at(1); !judgedCalls(recs).Rows[caseDead].Held() {
		t.Error("2 s late did not hold on a machine that was 1 s late itself")
	}
}

// The cases are the incident's list, and each asks for something.
func TestCasesAreWhole(t *testing.T) {
	cases := callCases()
	if len(cases) != caseRefused+1 {
		t.Fatalf("%d cases", len(cases))
	}
	for i, c := range cases {
		if c.noSocket != (len(c.channels) == 0) || c.noSocket != (len(c.calls) == 0) {
			t.Errorf("%d, %s: neither calls nor a report alone, or both", i, c.name)
		}
		if c.reports.n < 1 || c.reports.from > c.reports.to {
			t.Errorf("%d, %s: reports %+v", i, c.name, c.reports)
		}
		for _, s := range c.calls {
			if !slices.ContainsFunc(c.channels, func(ch callChannel) bool { return ch.name == s.channel }) {
				t.Errorf("%d, %s: no channel %q", i, c.name, s.channel)
			}
			if s.endAt+Slack >= callPatience-time.Duration(maxLate) {
				t.Errorf("%d, %s: %s may end after the watch", i, c.name, s.name)
			}
		}
	}
}
