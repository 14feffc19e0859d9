// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"time"
)

// poolRecord is what was seen of one run. Times count from the fault.
type poolRecord struct {
	requests []Request
	gone     time.Duration // when the last stale connection was gone, or never
	stale    int           // those left when the watch ended
	late     time.Duration // how late the client's timers fired at worst
}

// slack is what this run's times may come late.
func (rec *poolRecord) slack() slack { return slack(Slack + rec.late) }

// judge compares what was seen with what had to happen. Pure.
func (v *poolVariant) judge(rec poolRecord) Row {
	row := Row{
		Case: v.name, Required: v.incident, Measured: v.measured(rec),
		Requests: rec.requests, Late: rec.late,
		Pool: &PoolMoments{First: v.first, Gone: rec.gone},
	}
	row.Figures = append(row.Figures,
		punctual(rec.late),
		rec.slack().late("first request", sent(rec.requests, 0), v.first))
	switch {
	case v.want.allFail:
		row.Figures = append(row.Figures, v.allFail(rec)...)
	case v.want.failAfter > 0:
		row.Figures = append(row.Figures, v.oneFailure(rec)...)
	default:
		row.Figures = append(row.Figures, exactly("failures", count(rec.requests, (*Request).failed), 0))
		row.Figures = append(row.Figures, well(rec, v.first)...)
	}
	if before := v.want.goneBefore; before >= 0 {
		next := sent(rec.requests, before)
		row.Figures = append(row.Figures, between("all stale connections gone", rec.gone, 0, next))
	}
	return row
}

func (v *poolVariant) allFail(rec poolRecord) []Figure {
	shortest, longest := never, never
	for _, r := range rec.requests {
		if !r.failed() {
			continue
		}
		if shortest < 0 || r.Took < shortest {
			shortest = r.Took
		}
		longest = max(longest, r.Took)
	}
	due := int((poolWatch - v.first - time.Duration(rec.slack()) + poolPause) / (v.patience + poolPause))
	return []Figure{
		atLeast("failures", count(rec.requests, (*Request).failed), due),
		exactly("answers", count(rec.requests, (*Request).answered), 0),
		rec.slack().late("shortest failure", shortest, v.patience),
		rec.slack().late("longest failure", longest, v.patience),
	}
}

func (v *poolVariant) oneFailure(rec poolRecord) []Figure {
	after := never
	if len(rec.requests) > 0 && rec.requests[0].failed() {
		after = rec.requests[0].Took
	}
	wellFrom := v.first + v.want.failAfter + poolPause
	figures := []Figure{
		exactly("failures", count(rec.requests, (*Request).failed), 1),
		rec.slack().late("failure after", after, v.want.failAfter),
		rec.slack().late("well from", sent(rec.requests, 1), wellFrom),
	}
	return append(figures, well(rec, wellFrom)...)
}

// well are the figures of a client that is answered from a moment on. A request
// that hangs when the watch ends counts as an answer that slow.
func well(rec poolRecord, from time.Duration) []Figure {
	slowest, slack := never, time.Duration(rec.slack())
	for _, r := range rec.requests {
		switch {
		case r.answered():
			slowest = max(slowest, r.Took)
		case r.hanging(): // so far
			slowest = max(slowest, poolWatch-r.Sent)
		}
	}
	due := int((poolWatch - from - slack) / (poolPause + slack))
	return []Figure{
		atLeast("answers", count(rec.requests, (*Request).answered), due),
		rec.slack().late("slowest answer", slowest, 0),
	}
}

// measured puts into words what happened.
func (v *poolVariant) measured(rec poolRecord) string {
	failed := count(rec.requests, (*Request).failed)
	answered := count(rec.requests, (*Request).answered)
	hanging := count(rec.requests, (*Request).hanging)
	gone := fmt.Sprintf("%d of %d still there", rec.stale, poolConns)
	if rec.gone >= 0 {
		gone = fmt.Sprintf("all %d gone at %s", poolConns, seconds(rec.gone))
	}
	switch {
	case len(rec.requests) == 0:
		return "no request was sent"
	case failed == 0 && answered == 0:
		return "the first request hangs"
	case failed == 0:
		return fmt.Sprintf("%s, %d of %d requests succeed", gone, answered, answered+hanging)
	case failed == 1 && answered > 0 && rec.requests[0].failed():
		at := seconds(rec.requests[0].Took)
		if v.want.goneBefore > 0 {
			return fmt.Sprintf("1 failure at %s, %s, well from %s", at, gone, seconds(rec.requests[1].Sent))
		}
		return fmt.Sprintf("1 failure at %s, all well from %s", at, seconds(rec.requests[1].Sent))
	}
	text := fmt.Sprintf("%d of %d requests failed after %s", failed, failed+answered, seconds(firstFailure(rec.requests)))
	if hanging > 0 {
		text += ", one more hangs"
	}
	return text
}

func firstFailure(requests []Request) time.Duration {
	for _, r := range requests {
		if r.failed() {
			return r.Took
		}
	}
	return never
}

// sent returns when the n-th request was sent, or never.
func sent(requests []Request, n int) time.Duration {
	if n >= len(requests) {
		return never
	}
	return requests[n].Sent
}

func count(requests []Request, is func(*Request) bool) int {
	n := 0
	for i := range requests {
		if is(&requests[i]) {
			n++
		}
	}
	return n
}

// seconds is a time as the table shows it.
func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }
