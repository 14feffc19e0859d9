// SPDX-License-Identifier: Apache-2.0

package demo

import "time"

// condemned are the reports about a connection that is closed at a moment.
func condemned(n int, verdict, app string, at time.Duration) callReports {
	return callReports{n: n, verdict: verdict, action: "closed", app: app, from: at, to: at}
}

// spared is the report about a connection that stays: how soon that is clear is
// nobody's loss, as long as it is within the window.
func spared(verdict, app string) callReports {
	return callReports{n: 1, verdict: verdict, action: "none", app: app, from: callTimeout, to: callTimeout + callWindow}
}

// one is the only channel of a case.
func one(kept bool) []callChannel { return []callChannel{{name: "channel", kept: kept}} }

// slow is a call that is answered only after its timeout, at a moment.
func slow(at time.Duration) callStep {
	return callStep{name: "call", channel: "channel", work: callWork, end: endAnswered, endAt: at}
}

// lost is a call that ends with its connection.
func lost(at time.Duration) callStep {
	return callStep{name: "call", channel: "channel", end: endAborted, endAt: at}
}

// callCases are the cases of the incident.
func callCases() []callCase {
	return append(deadCases(), aliveCases()...)
}

// deadCases are those in which something is closed, or would be.
func deadCases() []callCase {
	const closed = callTimeout + callWindow
	second := lost(closed)
	second.name, second.at = "second call", callTimeout
	return []callCase{
		{
			name: "dead peer", required: "closed; the socket to another peer stays",
			fault:    faultPeer,
			channels: []callChannel{{name: "channel"}, {name: "other", elsewhere: true, kept: true}},
			calls:    []callStep{lost(closed)},
			reports:  condemned(1, "dead_path", "", closed),
		},
		{
			name: "one of two sockets dead", required: "closed; its sibling is probed and stays",
			fault:    faultOne,
			channels: []callChannel{{name: "channel"}, {name: "sibling", kept: true}},
			calls:    []callStep{lost(closed)},
			reports:  condemned(1, "dead_path", "", closed),
			tallies:  []tally{{what: packetsBare, channel: "sibling", n: 1, atLeast: true}},
		},
		{
			name: "two reports, one socket", required: "one probe run, one close, both are told",
			fault:    faultPeer,
			channels: one(false),
			calls:    []callStep{lost(closed), second},
			reports:  condemned(2, "dead_path", "", closed),
			tallies: []tally{
				{what: packetsBare, channel: "channel", n: callAttempts},
				{what: packetsReset, channel: "channel", n: 1},
			},
		},
		{
			name: "no socket", required: "nothing to judge, nothing is dialled",
			noSocket: true,
			reports:  callReports{n: 1},
			tallies:  []tally{{what: packetsSYN}},
		},
		{
			name: "stopped, app probe", required: "closed: the application is hung",
			fault: faultStop, health: 200, asks: true,
			channels: one(false),
			calls:    []callStep{lost(callTimeout + appTimeout)},
			reports:  condemned(1, "alive_hung", "silent", callTimeout+appTimeout),
		},
	}
}

// aliveCases are those in which everything stays and is answered.
func aliveCases() []callCase {
	refused := callStep{
		name: "refused call", channel: "channel", at: callPause, fail: true,
		end: endRefused, endAt: callPause,
	}
	return []callCase{
		{
			name: "stopped, no app probe", required: "stays; answered when the process goes on",
			fault: faultStop, resume: callWork, health: 200,
			channels: one(true),
			calls:    []callStep{{name: "call", channel: "channel", end: endAnswered, endAt: callWork}},
			reports:  spared("alive_slow", ""),
		},
		{
			name: "slow call", required: "stays; the answer comes",
			channels: one(true),
			calls:    []callStep{slow(callWork)},
			reports:  spared("alive_slow", ""),
		},
		{
			name: "slow, an error meanwhile", required: "stays: an error is life",
			channels: one(true),
			calls:    []callStep{slow(callWork), refused},
			reports:  spared("alive", ""),
		},
		{
			name: "slow, app probe gets 500", required: "stays: any answer is life",
			health: 500, asks: true,
			channels: one(true),
			calls:    []callStep{slow(callWork)},
			reports:  spared("alive_slow", "answered"),
		},
		{
			name: "slow, app probe refused", required: "stays: that proves nothing",
			asks:     true,
			channels: one(true),
			calls:    []callStep{slow(callWork)},
			reports:  spared("alive_slow", "no_connection"),
		},
	}
}
