// SPDX-License-Identifier: Apache-2.0

package api

import (
	"time"

	"github.com/sockhealth/sockhealth/internal/coverage"
)

// The words of CoverageStatus.Canary.
const (
	CanaryOK      = "ok"
	CanaryFailed  = "failed"
	CanaryUnknown = "unknown"
)

// CoverageStatus says how the last check went that compares the connections of
// the node with the policy; what it counted stands with each policy.
type CoverageStatus struct {
	// Scanned is when the last scan ended, nil where there was none yet.
	Scanned *time.Time `json:"scanned,omitempty"`
	// Revision is that of the policy it was of: where another is in force by now,
	// nothing is counted for that yet.
	Revision string `json:"revision,omitempty"`
	// TookMS is how long it took, CPUMS how much of a core.
	TookMS     int64 `json:"took_ms"`
	CPUMS      int64 `json:"cpu_ms"`
	Namespaces int   `json:"namespaces"`
	// Error is why the scan was not complete, "" where it was.
	Error string `json:"error,omitempty"`
	// Canary says whether the programs bounded the last canary connection: "ok",
	// "failed", or "unknown" where none could be made, or was.
	Canary     string     `json:"canary"`
	CanarySent *time.Time `json:"canary_sent,omitempty"`
	// CanaryError is why it is not "ok".
	CanaryError string `json:"canary_error,omitempty"`
}

// Unmanaged is the answer to GET /v1/sockets/unmanaged.
type Unmanaged struct {
	Schema  int               `json:"schema"`
	Sockets []UnmanagedSocket `json:"sockets"`
	// Incomplete is why some may be missing, "" where none is.
	Incomplete string `json:"incomplete,omitempty"`
}

// UnmanagedSocket is a connection that a policy names and that is not bounded as
// it wants.
type UnmanagedSocket struct {
	Local  string `json:"local"`
	Peer   string `json:"peer"`
	Cookie uint64 `json:"cookie"`
	Netns  uint32 `json:"netns"`
	UID    uint32 `json:"uid"`
	Policy string `json:"policy"`
	// Direction is inferred where the connection was not seen to open. Uncertain
	// says that the inference, and with it the policy, may be wrong.
	Direction string `json:"direction"`
	Uncertain bool   `json:"uncertain"`
	State     string `json:"state"`
	// Reason is one of package coverage's.
	Reason string `json:"reason"`
	// Options are set on the socket now.
	Options SocketOptions `json:"options"`
}

// NewUnmanagedSocket puts a finding into the words of the API.
func NewUnmanagedSocket(f *coverage.Found) UnmanagedSocket {
	return UnmanagedSocket{
		Local: addrText(f.Local), Peer: addrText(f.Remote), Cookie: f.Cookie, Netns: f.Netns, UID: f.UID,
		Policy: f.Policy, Direction: f.Direction.String(), Uncertain: f.Uncertain, State: stateText(f.State),
		Reason: string(f.Reason), Options: newSocketOptions(f.Options),
	}
}
