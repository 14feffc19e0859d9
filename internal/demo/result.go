// SPDX-License-Identifier: Apache-2.0

package demo

import "time"

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

// Row is one run of an incident.
type Row struct {
	Run string
	// First is when the first request was due. All times count from the
	// moment of the fault.
	First time.Duration
	// Incident is what happened in the incident, Measured what happened here.
	Incident, Measured string
	Figures            []Figure
	Requests           []Request
	// Late is how late the client's timers fired at worst.
	Late time.Duration
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

// Request is one request of a run's client.
type Request struct {
	// Sent counts from the fault, Took from the sending. Took is negative where
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
