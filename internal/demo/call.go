// SPDX-License-Identifier: Apache-2.0

package demo

import "time"

// The call incident: calls to peers that are still members of the cluster time
// out, for one reason each. A timeout alone does not prove a connection dead.
// The client reports each and waits on for the answer.
const (
	callName    = "call"
	callPort    = 7100
	healthPort  = 7101            // of the same process
	callTimeout = 2 * time.Second // after which the client reports
	callWork    = 6 * time.Second // of a slow call
	callPause   = time.Second     // from a slow call to the next on its channel
	appTimeout  = 3 * time.Second // of the application probe

	// The policy's probe of the path.
	callWindow   = 3 * time.Second
	callAttempts = 5

	// callSettle is when the cases are looked at, and what is left is used
	// once more; callPatience is when that happens though calls still hang.
	callSettle   = 8 * time.Second
	callPatience = 15 * time.Second
	// callAgain is how long that use may take.
	callAgain = 5 * time.Second
)

// callRefusal is the error that a peer answers a call with.
const callRefusal = "overloaded"

// callFault is what happens to a case right before its first call.
type callFault uint8

const (
	faultNone callFault = iota
	faultPeer           // all traffic to the peer is dropped
	faultOne            // that of the first channel is: its state was lost on the way
	faultStop           // the peer's process is stopped
)

// callCase is one row of the incident. It has a peer of its own, which nobody
// else calls. Moments count from the first call, and are those of a machine
// that is never late.
type callCase struct {
	name, required string
	fault          callFault
	// resume is when a stopped process goes on; 0: not before the end.
	resume time.Duration
	// health is the status that the peer's health endpoint answers with; 0:
	// nobody listens there. asks says that the policy has it asked.
	health int
	asks   bool

	channels []callChannel
	calls    []callStep
	// noSocket has the client report a peer to which it has no channel.
	noSocket bool
	reports  callReports
	tallies  []tally
}

// callChannel is a connection that the client has open from the beginning.
type callChannel struct {
	name string
	// elsewhere: it leads to a peer that is well.
	elsewhere bool
	kept      bool // whether it has to be
}

// callStep is a call on a channel.
type callStep struct {
	name, channel string
	at            time.Duration
	work          time.Duration // the peer's time to answer
	fail          bool          // the answer is an error
	end           callEnd       // what must become of it, and when
	endAt         time.Duration
}

// callEnd is what becomes of a call.
type callEnd uint8

const (
	endAnswered callEnd = iota
	endRefused          // the answer is an error
	endAborted          // the connection was closed under it
)

// callReports is what the agent must answer to every report of a case.
type callReports struct {
	n int
	// verdict, action and app are those of the one result. verdict "": there
	// is none.
	verdict, action, app string
	// from and to are the moments between which the answer comes.
	from, to time.Duration
}

// tally is what the router must have counted from the fault to callSettle.
type tally struct {
	what    packets
	channel string // of which; "" means all to the peer
	n       int
	atLeast bool // n or more
}

// packets are some that the client sends to a case's peer.
type packets uint8

const (
	packetsSYN   packets = iota // that ask for a connection
	packetsBare                 // without payload, as probes are
	packetsReset                // that close one
)

// String names them for the table.
func (p packets) String() string { return [...]string{"SYNs", "probes", "resets"}[p] }
