// SPDX-License-Identifier: Apache-2.0

package demo

import "time"

// callRecord is what was seen of one case. Moments count from its first call.
type callRecord struct {
	requests []Request
	reports  []Report
	kept     map[string]bool // the channels that are still there, by name
	counts   []int           // of the case's tallies, in order
	// control is what the first tally has counted after the client has dialled
	// the peer of a case without a channel: that it can.
	control int
	resumed time.Duration // when the stopped process went on, or never
	late    time.Duration // how late the client's timers fired at worst
}

// slack is what this case's times may come late.
func (rec *callRecord) slack() slack { return slack(Slack + rec.late) }

// again is the name of the call that sees whether a channel still works.
func again(channel string) string { return "again on " + channel }

// add takes an event of the client into the record. zero is the moment of the
// first call.
func (rec *callRecord) add(e callEvent, zero time.Duration) {
	at := e.At - zero
	rec.late = max(rec.late, e.Late)
	switch e.Kind {
	case eventSent:
		rec.requests = append(rec.requests, Request{Name: e.Name, Sent: at, Took: never, Local: e.Local})
	case eventDone:
		if r := rec.request(e.Name); r != nil {
			r.Took, r.Err, r.Server = at-r.Sent, e.Err, e.Server
		}
	case eventReporting:
		rec.reports = append(rec.reports, Report{Call: e.Name, Sent: at, Took: never})
	case eventReported:
		for i := range rec.reports {
			if r := &rec.reports[i]; r.Call == e.Name {
				r.Took, r.Err, r.Results = at-r.Sent, e.Err, e.Results
			}
		}
	}
}

// request returns the call of that name, nil where it was not sent.
func (rec *callRecord) request(name string) *Request {
	for i := range rec.requests {
		if rec.requests[i].Name == name {
			return &rec.requests[i]
		}
	}
	return nil
}

// settled reports whether everything that a case asks for has happened.
func (rec *callRecord) settled(c *callCase) bool {
	for _, step := range c.calls {
		if r := rec.request(step.name); r == nil || r.hanging() {
			return false
		}
	}
	return rec.told() >= c.reports.n
}

// told counts the reports that the agent has answered, or refused.
func (rec *callRecord) told() int {
	n := 0
	for _, r := range rec.reports {
		if r.Took >= 0 {
			n++
		}
	}
	return n
}

// worksAgain reports whether every channel that had to stay was tried.
func (rec *callRecord) worksAgain(c *callCase) bool {
	for _, ch := range c.channels {
		if r := rec.request(again(ch.name)); ch.kept && (r == nil || r.hanging()) {
			return false
		}
	}
	return true
}
