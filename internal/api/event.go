// SPDX-License-Identifier: Apache-2.0

package api

import (
	"time"

	"github.com/sockhealth/sockhealth/internal/agent"
	"github.com/sockhealth/sockhealth/internal/verdict"
	"github.com/sockhealth/sockhealth/report"
)

// Event is one line of the answer to GET /v1/events.
type Event struct {
	Schema int `json:"schema"`
	// Seq counts from 1 since the agent started.
	Seq  uint64    `json:"seq"`
	Time time.Time `json:"time"`
	// Kind is "verdict", "end" (the kernel ended a connection) or "stall" (the
	// first retransmission timeout of a stall).
	Kind   string `json:"kind"`
	Netns  uint32 `json:"netns"`
	Local  string `json:"local"`
	Peer   string `json:"peer"`
	Cookie uint64 `json:"cookie"`
	Policy string `json:"policy,omitempty"`
	// ContainerID and PodUID say in which container and pod the socket lives, ""
	// where it lives in none or that is not known.
	ContainerID string `json:"container_id,omitempty"`
	PodUID      string `json:"pod_uid,omitempty"`
	// Lost counts the events, of whatever kind, that this stream lost before
	// this one because it was read too slowly or asked for too late.
	Lost uint64 `json:"lost,omitempty"`
	// Verdict belongs to a verdict, End to an end or a stall.
	Verdict *VerdictEvent `json:"judgement,omitempty"`
	End     *EndEvent     `json:"connection,omitempty"`
}

// VerdictEvent is a judgement.
type VerdictEvent struct {
	Verdict string `json:"verdict"`
	Reason  string `json:"reason,omitempty"`
	Action  string `json:"action"`
	// Frozen says why nothing was closed, where the action is frozen (agent.Freezes).
	Frozen string `json:"frozen,omitempty"`
	// Revision is that of the policy file that was in force.
	Revision string `json:"revision,omitempty"`
	// Reporter is who asked (agent.Reporters). UID and PID are those of the caller
	// of a call.
	Reporter string          `json:"reporter"`
	UID      uint32          `json:"uid"`
	PID      int32           `json:"pid"`
	Evidence report.Evidence `json:"evidence"`
	// Probes are the questions to the peer's kernel, with their times.
	Probes []agent.Attempt `json:"probes,omitempty"`
	// Basis is what the decision was made on: from it, it can be made again. It is
	// nil where nothing could be decided (the reasons busy and failed).
	Basis *verdict.Basis `json:"basis,omitempty"`
}

// EndEvent is what the kernel tells of a connection that ends or stalls.
type EndEvent struct {
	// Cause is normal, reset, idle_bound, in_flight_bound, destroyed, other or
	// connect_bound (no connection was made); Errno what the application sees, ""
	// for none.
	Cause         string `json:"cause"`
	Errno         string `json:"errno,omitempty"`
	Direction     string `json:"direction"`
	BytesReceived uint64 `json:"bytes_received"`
	BytesAcked    uint64 `json:"bytes_acked"`
	Retransmits   uint8  `json:"retransmits"`
	ProbesOut     uint8  `json:"probes_out"`
}

// newEvent puts an entry into the words of the API.
func newEvent(e *agent.Entry, lost uint64) Event {
	out := Event{
		Schema: Schema, Seq: e.Seq, Time: e.Time, Kind: string(e.Kind),
		Netns: e.ID.Netns, Local: addrText(e.ID.Local), Peer: addrText(e.ID.Remote), Cookie: e.ID.Cookie,
		Policy: e.Policy, ContainerID: e.Container.Container, PodUID: e.Container.Pod, Lost: lost,
	}
	if e.Result != nil {
		r := result(e.Result)
		out.Verdict = &VerdictEvent{
			Verdict: r.Verdict, Reason: r.Reason, Action: r.Action, Frozen: r.Frozen,
			Revision: r.Revision, Reporter: e.Reporter, UID: e.UID, PID: e.PID, Evidence: r.Evidence,
			Probes: e.Result.Attempts, Basis: e.Result.Basis,
		}
	}
	if k := e.Event; k != nil {
		out.End = &EndEvent{
			Cause: k.Cause.String(), Direction: k.Direction.String(),
			BytesReceived: k.BytesReceived, BytesAcked: k.BytesAcked, Retransmits: k.Retransmits, ProbesOut: k.ProbesOut,
		}
		if k.Errno != 0 {
			out.End.Errno = k.Errno.Error()
		}
	}
	return out
}
