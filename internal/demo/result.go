// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"time"

	"github.com/sockhealth/sockhealth/report"
)

// Result is what Run measured.
type Result struct {
	Incidents []Incident
}

// Held reports whether every figure of every incident held. A Result without
// an incident has held nothing.
func (r *Result) Held() bool {
	for _, i := range r.Incidents {
		if !i.Held() {
			return false
		}
	}
	return len(r.Incidents) > 0
}

// Incident is one incident, played and judged.
type Incident struct {
	// Name is one word; Title a clause for the table's head.
	Name, Title string
	// Asked heads the column of what had to happen.
	Asked string
	// Times is a sentence that says from when the rows' times count.
	Times string
	// Lesson is the sentence for the end of a table in which all rows held.
	Lesson  string
	Watched time.Duration
	Rows    []Row
}

// Held reports whether every row held.
func (i *Incident) Held() bool {
	for _, r := range i.Rows {
		if !r.Held() {
			return false
		}
	}
	return len(i.Rows) > 0
}

// Row is one case of an incident. All its moments count from one, which the
// Incident names.
type Row struct {
	Case string
	// Required is what had to happen, Measured what happened here.
	Required, Measured string
	Figures            []Figure
	Requests           []Request
	Reports            []Report
	// Late is how late the client's timers fired at worst.
	Late time.Duration
	// Pool is nil in rows of other incidents.
	Pool *PoolMoments
}

// PoolMoments are those of a row of the pool incident.
type PoolMoments struct {
	// First is when the first request was due.
	First time.Duration
	// Gone is when the last stale connection was gone; negative: never.
	Gone time.Duration
}

// Held reports whether every figure held.
func (r *Row) Held() bool {
	for _, f := range r.Figures {
		if !f.Held() {
			return false
		}
	}
	return len(r.Figures) > 0
}

// Request is one request of a row's client.
type Request struct {
	// Name tells the requests of the call incident apart, else empty.
	Name string
	// Sent counts as the row does, Took from the sending. Took is negative where
	// the request was still hanging when the watch ended.
	Sent, Took time.Duration
	// Err is empty where the request was answered, by Server.
	Err, Server string
	// Local is the client's address:port of the connection that carried the
	// request, empty where it had none.
	Local string
}

// hanging reports whether the request had no outcome yet.
func (r *Request) hanging() bool { return r.Took < 0 }

// failed reports whether the request ended without an answer.
func (r *Request) failed() bool { return !r.hanging() && r.Err != "" }

// answered reports whether an answer came.
func (r *Request) answered() bool { return !r.hanging() && r.Err == "" }

// Report is one report of a row's client to the agent.
type Report struct {
	// Call is the name of the request that timed out, empty where none could be
	// sent.
	Call string
	// Sent counts as the row does, Took from there to the agent's answer. Took
	// is negative where none came before the watch ended.
	Sent, Took time.Duration
	// Err is empty where the agent answered, with Results.
	Err     string
	Results []report.Result
}

// answered reports whether the agent answered.
func (r *Report) answered() bool { return r.Took >= 0 && r.Err == "" }
