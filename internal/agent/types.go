// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

// Caller is who reports, as the kernel says (never as the body says).
type Caller struct {
	// NS is the network namespace of the caller's own end of the socket. The
	// agent borrows it for the time of the call.
	NS  *netns.NS
	UID uint32
	PID int32
}

// Report says that a call timed out on a socket of the caller.
type Report struct {
	Caller Caller
	// Local names the socket, or Cookie does where Local is not valid. Peer,
	// where valid, must agree with it.
	Local, Peer netip.AddrPort
	Cookie      uint64
	// Sent is when the call was written, on CLOCK_MONOTONIC (conn.Now).
	Sent time.Duration
}

// Action is what was done about a verdict.
type Action string

// The actions that can be taken so far.
const (
	ActionNone   Action = "none"
	ActionClosed Action = "closed"
	ActionFailed Action = "failed"
)

// Result is one judgement.
type Result struct {
	ID       conn.ID
	Policy   string
	Verdict  verdict.Word
	Reason   string
	Action   Action
	Evidence verdict.Evidence
	Duration time.Duration
}
