// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"time"

	"github.com/sockhealth/sockhealth/report"
)

// What the client of the call incident may be ordered to do.
const (
	orderOpen   = "open"   // a channel
	orderCall   = "call"   // on a channel; reported when it times out
	orderReport = "report" // a peer alone
)

// order is a line on the standard input of that client.
type order struct {
	Do   string `json:"do"`
	Case int    `json:"case"` // the name space of channels and calls
	// Name is that of the channel or the call, empty for a report.
	Name string `json:"name,omitempty"`
	// Channel is the one to call on.
	Channel string `json:"channel,omitempty"`
	// Peer is an address:port to open or report.
	Peer string `json:"peer,omitempty"`
	// At is when to do it, on CLOCK_MONOTONIC; not before the order has come.
	At   time.Duration `json:"at_ns,omitempty"`
	Work time.Duration `json:"work_ns,omitempty"`
	Fail bool          `json:"fail,omitempty"`
}

// Kinds of the client's events, beside eventSent and eventDone.
const (
	eventOpened    = "opened"    // a channel, on which the peer has answered
	eventReporting = "reporting" // a report goes out now
	eventReported  = "reported"  // and was answered, or not
)

// callEvent is a line on the standard output of that client.
type callEvent struct {
	Kind string `json:"kind"`
	Case int    `json:"case"`
	// Name is that of the channel or the call.
	Name string `json:"name,omitempty"`
	// At is the moment on CLOCK_MONOTONIC, Late how late the client's timers
	// fired at worst, so far.
	At   time.Duration `json:"at_ns"`
	Late time.Duration `json:"late_ns"`
	// Local is the client's address of the channel.
	Local string `json:"local,omitempty"`
	// Err and Server are those of the Request or the Report, Results the
	// agent's.
	Err     string          `json:"err,omitempty"`
	Server  string          `json:"server,omitempty"`
	Results []report.Result `json:"results,omitempty"`
}
