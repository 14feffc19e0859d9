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
	// Owner says that the caller is heard about every socket of NS: it owns the
	// user namespace of NS, which is not the agent's own, or it asks on the
	// admin socket.
	Owner bool
}

// sees reports whether the caller may hear about a socket.
func (c *Caller) sees(s *conn.Snapshot) bool { return c.Owner || s.UID == c.UID }

// Report says that a call timed out on a socket of the caller.
type Report struct {
	Caller Caller
	// Local names the socket, or Cookie does where Local is not valid. Peer,
	// where valid, must agree with it; Peer alone means every socket of the
	// caller to it.
	Local, Peer netip.AddrPort
	Cookie      uint64
	// Sent is when the call was written, on CLOCK_MONOTONIC (conn.Now).
	Sent time.Duration
}

// Action is what was done about a verdict.
type Action string

// The actions.
const (
	ActionNone     Action = "none"
	ActionClosed   Action = "closed"
	ActionObserved Action = "observed" // the policy says observe: closed but for that
	ActionDeferred Action = "deferred" // beyond the budget: judged again when it has room, and closed then
	ActionFrozen   Action = "frozen"   // it may be this node: nothing is closed (Freezes)
	ActionFailed   Action = "failed"   // the kernel refused, or too many wait for the budget
)

// Actions lists them.
func Actions() []Action {
	return []Action{ActionNone, ActionClosed, ActionDeferred, ActionObserved, ActionFrozen, ActionFailed}
}

// The causes of a close that the agent decided on. The kernel has its own
// (loader.Cause).
const (
	CauseDeadPath    = "dead_path"
	CauseHung        = "hung"
	CauseSilentLimit = "silent_limit"
)

// Causes lists them.
func Causes() []string { return []string{CauseDeadPath, CauseHung, CauseSilentLimit} }

// cause of a verdict that condemns.
func cause(v verdict.Verdict) string {
	switch {
	case v.Reason == verdict.ReasonSilentLimit:
		return CauseSilentLimit
	case v.Word == verdict.AliveHung:
		return CauseHung
	}
	return CauseDeadPath
}

// Result is one judgement, and the record of it.
type Result struct {
	ID     conn.ID
	Policy string
	// Revision is that of the policy that was in force, "" where none was yet.
	Revision string
	Verdict  verdict.Word
	Reason   string
	Action   Action
	// Frozen says why nothing was closed where the action is frozen.
	Frozen   Freeze
	Evidence verdict.Evidence
	// Delivery says what became of the request of the call.
	Delivery verdict.Delivery
	// Basis is what Decide decided on, nil where it could not be asked (the
	// reasons busy and failed).
	Basis *verdict.Basis
	// Attempts are the probes, the first of them where there were very many; none
	// where the first look sufficed.
	Attempts []Attempt
	// Cgroup is the socket's, 0 where there is none or the kernel does not tell.
	Cgroup   uint64
	Duration time.Duration
}
