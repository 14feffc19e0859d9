// SPDX-License-Identifier: Apache-2.0

package api

import (
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/container"
)

// Schema is the version of the admin socket's JSON.
const Schema = 1

// The words of Status.Health.
const (
	HealthOK       = "ok"
	HealthDegraded = "degraded"
)

// Status is the answer to GET /v1/status.
type Status struct {
	Schema int `json:"schema"` // set by the server
	// Health is "ok" or "degraded": there are problems, or the policy in
	// force is not the one in the file. Set by the server.
	Health string `json:"health"`
	// Problems are sentences for people: what does not work, and the remedy.
	Problems []string `json:"problems"`

	Version string    `json:"version"`
	PID     int       `json:"pid"`
	Started time.Time `json:"started"`
	Kernel  string    `json:"kernel"`
	// Cgroup is where the programs are attached.
	Cgroup string `json:"cgroup"`
	// Programs are those that the kernel has attached there now.
	Programs []string `json:"programs"`
	// Features is all that the agent stands on, whether it works or not.
	Features []Feature `json:"features"`
	// Netns names the network namespaces that reports are heard from: "all",
	// or their paths.
	Netns []string `json:"netns"`

	Policy   PolicyFile     `json:"policy"`
	Coverage CoverageStatus `json:"coverage"`
	Peers    []PolicyStatus `json:"peers"`
	// Faults counts what went wrong in the programs since this agent started, by
	// reason; reasons that never occurred may be left out. FaultsBefore is what the
	// agents that it took over from have left, or what came while none ran.
	Faults        map[string]uint64 `json:"faults"`
	FaultsBefore  map[string]uint64 `json:"faults_before,omitempty"`
	EventsDropped uint64            `json:"events_dropped"`
	// Judgements are under way now.
	Judgements int `json:"judgements"`
	// Deferred are condemned connections that wait for the budget; FrozenSince is since
	// when nothing is closed by judgement, nil where that is not so, and FrozenReason why
	// (agent.Freezes).
	Deferred     int        `json:"deferred"`
	FrozenSince  *time.Time `json:"frozen_since,omitempty"`
	FrozenReason string     `json:"frozen_reason,omitempty"`
}

// Feature is one of the checks of doctor, made of the running agent.
type Feature struct {
	Name string `json:"name"`
	// Status is works, unneeded (another does what it would), untested, degraded or
	// missing.
	Status string `json:"status"`
	// Detail is what was found, or why it does not work; Lost what the agent cannot do
	// without it, Remedy what would bring it.
	Detail string `json:"detail"`
	Lost   string `json:"lost,omitempty"`
	Remedy string `json:"remedy,omitempty"`
}

// PolicyFile says which policy is in force.
type PolicyFile struct {
	File string `json:"file"`
	// Revision is a short hash of the file's content.
	Revision string `json:"revision"`
	// Loaded is since when it is in force; a read of the unchanged file does not move it.
	Loaded time.Time `json:"loaded"`
	// Error is why the file as it is now was refused; the policy of Loaded
	// stays in force then. "" where it was not.
	Error string `json:"error,omitempty"`
}

// PolicyStatus are the totals of one policy since the programs were attached.
type PolicyStatus struct {
	Name   string `json:"name"`
	Opened uint64 `json:"opened"`
	Closed uint64 `json:"closed"`
	// Adopted are connections that were open before they were managed, Released
	// those that the policy names no more.
	Adopted  uint64 `json:"adopted"`
	Released uint64 `json:"released"`
	// Pending counts those whose options are not all set yet, by what they wait
	// for, as the last round of adoption found them.
	Pending map[string]uint64 `json:"pending,omitempty"`
	// Expected are the open connections that the policy names, Bounded those among
	// them that are bounded as it wants, Unmanaged the rest by reason (the words
	// of package coverage): as the last scan of Status.Coverage found them.
	Expected  uint64            `json:"expected"`
	Bounded   uint64            `json:"bounded"`
	Unmanaged map[string]uint64 `json:"unmanaged,omitempty"`
	// DriftFound counts connections whose options a scan found changed behind the
	// programs, DriftRepaired those that adoption brought in line again, whoever
	// found them.
	DriftFound    uint64 `json:"drift_found"`
	DriftRepaired uint64 `json:"drift_repaired"`
	// Guarded are connections whose peer does not read, and whose user timeout is
	// longer for that now; Guards is how often that began.
	Guarded uint64 `json:"guarded"`
	Guards  uint64 `json:"guards"`
	// Stale counts connections that were dead when they ended, by cause;
	// Verdicts the judgements, by verdict. Zeros may be left out.
	Stale    map[string]uint64 `json:"stale"`
	Verdicts map[string]uint64 `json:"verdicts"`
}

// Policy is the answer to GET /v1/policy.
type Policy struct {
	Schema int `json:"schema"` // set by the server
	PolicyFile
	// Text is the policy in force, YAML, as it was read.
	Text string `json:"text"`
}

// Sockets is the answer to GET /v1/sockets.
type Sockets struct {
	Schema  int      `json:"schema"`
	Sockets []Socket `json:"sockets"`
	// Incomplete is why some may be missing, "" where none is.
	Incomplete string `json:"incomplete,omitempty"`
}

// Socket is one look at one socket. Ages are in milliseconds.
type Socket struct {
	Local  string `json:"local"`
	Peer   string `json:"peer"`
	Cookie uint64 `json:"cookie"`
	Netns  uint32 `json:"netns"`
	UID    uint32 `json:"uid"`
	// ContainerID and PodUID say in which container and pod it lives, "" where it
	// lives in none or that is not known.
	ContainerID string `json:"container_id,omitempty"`
	PodUID      string `json:"pod_uid,omitempty"`
	// Policy is "" where none is in force.
	Policy        string `json:"policy,omitempty"`
	Direction     string `json:"direction"`
	State         string `json:"state"`
	BytesReceived uint64 `json:"bytes_received"`
	BytesAcked    uint64 `json:"bytes_acked"`
	Unread        uint32 `json:"unread"`
	InFlight      bool   `json:"in_flight"`
	LastDataMS    int64  `json:"last_data_ms"`
	LastPacketMS  int64  `json:"last_packet_ms"`
	Retransmits   uint8  `json:"retransmits"`
	ProbesOut     uint8  `json:"probes_out"`
	// Guarded says that the peer does not read: the user timeout is longer for that,
	// and what is meant to be set comes back when it reads or stops answering.
	Guarded bool `json:"guarded"`
	// Options are set on the socket now, Policed are the policy's, App is what
	// the application last asked for (zeros: it never asked).
	Options SocketOptions `json:"options"`
	Policed SocketOptions `json:"policed"`
	App     SocketOptions `json:"app"`
	// Adopted says that it was open before it was managed: its age is not known, and
	// AgeMS is the time since it was adopted.
	Adopted bool `json:"adopted"`
	// AgeMS is the time since the connection opened; the bounds say how long
	// after its peer's death it ends, by the options it has. NewSocket leaves
	// these three to the caller.
	AgeMS           int64 `json:"age_ms"`
	IdleBoundMS     int64 `json:"idle_bound_ms"`
	InFlightBoundMS int64 `json:"in_flight_bound_ms"`
}

// SocketOptions are the options that bound a connection; 0: not set, the
// kernel's default.
type SocketOptions struct {
	KeepAlive     bool  `json:"keepalive"`
	IdleS         int64 `json:"idle_s"`
	IntervalS     int64 `json:"interval_s"`
	Count         int   `json:"count"`
	UserTimeoutMS int64 `json:"user_timeout_ms"`
	// RTOMaxMS is TCP_RTO_MAX_MS, 0 where it is above 25,500.
	RTOMaxMS int64 `json:"rto_max_ms"`
}

// NewSocket puts a snapshot into the words of the API. policy is the name of
// the policy in force on it, "" for none; where is the container it lives in.
func NewSocket(s *conn.Snapshot, policy string, where container.ID) Socket {
	return Socket{
		Local: addrText(s.Local), Peer: addrText(s.Remote), Cookie: s.Cookie, Netns: s.Netns, UID: s.UID,
		ContainerID: where.Container, PodUID: where.Pod,
		Policy:        policy,
		Direction:     s.Record.Direction.String(),
		State:         stateText(s.State),
		BytesReceived: s.PayloadReceived(),
		BytesAcked:    s.PayloadAcked(),
		Unread:        s.Unread(),
		InFlight:      s.InFlight(),
		LastDataMS:    s.DataAge.Milliseconds(),
		LastPacketMS:  s.PacketAge.Milliseconds(),
		Retransmits:   s.Retransmits,
		ProbesOut:     s.ProbesOut,
		Guarded:       s.Record.Guarded,
		Adopted:       s.HasRecord && s.Record.Adopted,
		Options:       newSocketOptions(s.Options),
		Policed:       newSocketOptions(s.Record.Policed),
		App:           newSocketOptions(s.Record.App),
	}
}

func newSocketOptions(o conn.Options) SocketOptions {
	return SocketOptions{
		KeepAlive:     o.KeepAlive,
		IdleS:         int64(o.Idle / time.Second),
		IntervalS:     int64(o.Interval / time.Second),
		Count:         o.Count,
		UserTimeoutMS: o.UserTimeout.Milliseconds(),
		RTOMaxMS:      o.RTOMax.Milliseconds(),
	}
}
