// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"math"
	"time"
)

// judge compares what was seen with what had to happen. Pure.
func (c *callCase) judge(rec callRecord) Row {
	row := Row{
		Case: c.name, Required: c.required, Measured: c.measured(rec),
		Requests: rec.requests, Reports: rec.reports, Late: rec.late,
		Figures: []Figure{punctual(rec.late)},
	}
	for _, figures := range [][]Figure{
		c.judgeReports(rec), c.judgeCalls(rec), c.judgeChannels(rec), c.judgeTallies(rec),
	} {
		row.Figures = append(row.Figures, figures...)
	}
	return row
}

// judgeReports are the figures of what the agent has told.
func (c *callCase) judgeReports(rec callRecord) []Figure {
	want := c.reports
	told := 0
	for _, r := range rec.reports {
		if want.fits(r) {
			told++
		}
	}
	figures := []Figure{
		exactly("reports", len(rec.reports), want.n),
		exactly("answers of "+want.String(), told, want.n),
	}
	for _, r := range rec.reports {
		at := never
		if r.answered() {
			at = r.Sent + r.Took
		}
		slack := time.Duration(rec.slack())
		figures = append(figures, between("report answered", at, want.from, want.to+slack))
		for _, res := range r.Results {
			age := time.Duration(res.Evidence.CallMS) * time.Millisecond
			figures = append(figures, rec.slack().late("age of the call when it was reported", age, callTimeout))
		}
	}
	return figures
}

// fits reports whether a report was answered as it had to be.
func (want *callReports) fits(r Report) bool {
	if !r.answered() {
		return false
	}
	if want.verdict == "" {
		return len(r.Results) == 0
	}
	if len(r.Results) != 1 {
		return false
	}
	got := r.Results[0]
	return got.Verdict == want.verdict && got.Action == want.action && got.Evidence.AppProbe == want.app
}

// String is the answer, for the name of a figure.
func (want *callReports) String() string {
	if want.verdict == "" {
		return "an empty list"
	}
	text := fmt.Sprintf("verdict %s, action %s", want.verdict, want.action)
	if want.app != "" {
		text += ", application " + want.app
	}
	return text
}

// judgeCalls are the figures of what became of the calls.
func (c *callCase) judgeCalls(rec callRecord) []Figure {
	var figures []Figure
	if c.resume > 0 {
		figures = append(figures, rec.slack().late("process goes on", rec.resumed, c.resume))
	}
	for _, step := range c.calls {
		at, due := never, step.endAt
		if c.resume > 0 {
			due = rec.resumed // whenever that was
		}
		if r := rec.request(step.name); r != nil && step.end.is(r) {
			at = r.Sent + r.Took
		}
		figures = append(figures, rec.slack().late(step.name+" "+step.end.String(), at, due))
	}
	return figures
}

// is reports whether a call has ended so.
func (e callEnd) is(r *Request) bool {
	switch e {
	case endAnswered:
		return r.answered()
	case endRefused:
		return r.failed() && r.Err == callRefusal
	}
	return r.failed() && r.Err == "ECONNABORTED"
}

// String says what became of a call.
func (e callEnd) String() string {
	return [...]string{"answered", "answered with an error", "ended by ECONNABORTED"}[e]
}

// judgeChannels are the figures of which channels are still there, as the kernel
// says, and work.
func (c *callCase) judgeChannels(rec callRecord) []Figure {
	var figures []Figure
	for _, ch := range c.channels {
		figures = append(figures, exactly(ch.name+" still connected", asNumber(rec.kept[ch.name]), asNumber(ch.kept)))
		if !ch.kept {
			continue
		}
		took := never
		if r := rec.request(again(ch.name)); r != nil && r.answered() {
			took = r.Took
		}
		figures = append(figures, rec.slack().late("answer "+again(ch.name), took, 0))
	}
	return figures
}

// judgeTallies are the figures of what the router has counted.
func (c *callCase) judgeTallies(rec callRecord) []Figure {
	var figures []Figure
	for i, t := range c.tallies {
		f := Figure{Name: t.String(), Unit: UnitCount, Min: float64(t.n), Max: float64(t.n), Measured: math.NaN()}
		if i < len(rec.counts) {
			f.Measured = float64(rec.counts[i])
		}
		if t.atLeast {
			f.Max = math.Inf(1)
		}
		figures = append(figures, f)
	}
	if c.noSocket {
		figures = append(figures, atLeast("the same once the client dials", rec.control, 1))
	}
	return figures
}

// String names the figure.
func (t tally) String() string {
	where := "to the peer"
	if t.channel != "" {
		where = "on " + t.channel
	}
	return fmt.Sprintf("%s %s at the router", t.what, where)
}

func asNumber(b bool) int {
	if b {
		return 1
	}
	return 0
}
