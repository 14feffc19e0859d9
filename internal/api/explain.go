// SPDX-License-Identifier: Apache-2.0

package api

import (
	"net/netip"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/policy"
	"github.com/sockhealth/sockhealth/report"
)

// Explanation is the answer to GET /v1/sockets/explain: all that there is to
// say about one socket.
type Explanation struct {
	Schema int    `json:"schema"` // set by the server
	Socket Socket `json:"socket"`
	Detail Detail `json:"detail"`
	// Unmanaged says why no policy is in force on it: "no_policy", or one of the
	// reasons of package coverage; "" where one is.
	Unmanaged string `json:"unmanaged,omitempty"`
	// Remedy says, for people, what would bring it under the rule; "" where nothing
	// would, or it is.
	Remedy string `json:"remedy,omitempty"`
	// Rule is the entry that is in force, or that would be for a connection
	// opened now; nil: none names the peer.
	Rule *Rule `json:"rule,omitempty"`
	// Figures say what the rule's values amount to, nil without a rule. They
	// hold for connections that keep them; the socket's own bounds stand in
	// Socket.
	Figures *Figures `json:"figures,omitempty"`
}

// Detail is what a look shows beyond Socket.
type Detail struct {
	// Family is "ipv4", "ipv6", or "ipv4_mapped" for an IPv6 socket that
	// speaks IPv4.
	Family string `json:"family"`
	// Ifindex is the device the socket is bound to, 0 for none; Mark its
	// SO_MARK.
	Ifindex uint32 `json:"ifindex,omitempty"`
	Mark    uint32 `json:"mark,omitempty"`
	// LeavesBy is the device of its cached route, 0 where there is none;
	// LinkUp says that this device is up and has a carrier.
	LeavesBy uint32 `json:"leaves_by,omitempty"`
	LinkUp   bool   `json:"link_up"`
	// Unacked are bytes written that the peer has not acknowledged.
	Unacked uint32 `json:"unacked"`
	// SendWindow is what the peer lets us send, 0: it does not read.
	SendWindow    uint32 `json:"send_window"`
	ReceiveWindow uint32 `json:"receive_window"`
	// SRTTUS is the smoothed round trip in microseconds, 0: not measured.
	SRTTUS     int64 `json:"srtt_us"`
	Timestamps bool  `json:"timestamps"`
	MPTCP      bool  `json:"mptcp"`
	MD5OrAO    bool  `json:"md5_or_ao"`
	Repair     bool  `json:"repair"`
	// Recorded says that the programs know the socket: they saw it open, or it was
	// Adopted when it was open already, and its direction is inferred; Ambiguous
	// says that the inference is not certain, so that nobody closes it. Effective
	// are the options that they gave it, Pending says that some are still to come.
	Recorded  bool          `json:"recorded"`
	Adopted   bool          `json:"adopted"`
	Ambiguous bool          `json:"ambiguous"`
	Pending   bool          `json:"pending"`
	Effective SocketOptions `json:"effective"`
	// GuardIntervalMS is how long after its bound a guarded connection may end: the
	// time from one look of the guard to the next, as it is now. 0: it is not
	// guarded, or this agent has not looked yet.
	GuardIntervalMS int64 `json:"guard_interval_ms,omitempty"`
}

// NewDetail puts a snapshot into the words of the API.
func NewDetail(s *conn.Snapshot) Detail {
	d := Detail{
		Family: "ipv4", Ifindex: s.Ifindex, Mark: s.Mark, LeavesBy: s.DstDev, LinkUp: s.DstDevUp,
		Unacked: s.WriteSeq - s.SndUna, SendWindow: s.SndWnd, ReceiveWindow: s.RcvWnd,
		SRTTUS: s.SRTT.Microseconds(), Timestamps: s.Timestamps,
		MPTCP: s.MPTCP, MD5OrAO: s.MD5OrAO, Repair: s.Repair,
		Recorded: s.HasRecord, Adopted: s.Record.Adopted, Ambiguous: s.Record.Ambiguous, Pending: s.Record.Pending, Effective: newSocketOptions(s.Record.Effective),
	}
	switch {
	case s.Mapped():
		d.Family = "ipv4_mapped"
	case !s.Remote.Addr().Is4():
		d.Family = "ipv6"
	}
	return d
}

// Rule is an entry of the policy file.
type Rule struct {
	Name string `json:"name"`
	// File and Line say where the entry starts.
	File string `json:"file"`
	Line int    `json:"line"`
	// CIDR is the entry's prefix that matched.
	CIDR  string   `json:"cidr"`
	Ports []string `json:"ports"` // ranges; empty: every port
	// Directions is outbound, inbound or both.
	Directions string        `json:"directions"`
	Options    SocketOptions `json:"options"`
	WindowMS   int64         `json:"window_ms"`
	Attempts   int           `json:"attempts"`
	// Observe says that nothing is closed (action: observe).
	Observe bool `json:"observe"`
	// AppProbe is the application probe, nil where the entry names none.
	AppProbe *AppProbe `json:"app_probe,omitempty"`
	// CloseSilentAfterMS is 0 where there is no such limit.
	CloseSilentAfterMS int64 `json:"close_silent_after_ms"`
	// SilenceMS is 0 where nothing is judged without a report.
	SilenceMS int64 `json:"silence_ms"`
	// ConnectTimeoutMS is 0 where connect() is not bounded.
	ConnectTimeoutMS int64 `json:"connect_timeout_ms"`
}

// AppProbe is how the application is asked.
type AppProbe struct {
	Kind string `json:"kind"` // http, grpc or send
	// Port is 0 where it is that of the connection.
	Port      uint16 `json:"port,omitempty"`
	TimeoutMS int64  `json:"timeout_ms"`
	// CloseHung says that the application's silence costs the connection
	// (on_hung: close).
	CloseHung bool `json:"close_hung"`
}

// NewRule puts the entry that matched a service's address into the words of the
// API. file is the policy's.
func NewRule(p *policy.Peer, file string, service netip.Addr) Rule {
	r := Rule{
		Name: p.Name, File: file, Line: p.Line, Ports: []string{}, Directions: p.Directions.String(),
		Options:  newSocketOptions(p.Options),
		WindowMS: p.Probe.Window.Milliseconds(), Attempts: p.Probe.Attempts,
		Observe: p.Observe, CloseSilentAfterMS: p.CloseSilentAfter.Milliseconds(), SilenceMS: p.Silence.Milliseconds(),
		ConnectTimeoutMS: p.ConnectTimeout.Milliseconds(),
	}
	if a := p.AppProbe; a != nil {
		r.AppProbe = &AppProbe{Kind: string(a.Kind), Port: a.Port, TimeoutMS: a.Timeout.Milliseconds(), CloseHung: a.CloseHung}
	}
	bits := -1
	for _, c := range p.CIDRs {
		if c.Prefix.Contains(service) && c.Prefix.Bits() > bits {
			r.CIDR, bits = c.Prefix.String(), c.Prefix.Bits()
		}
	}
	for _, ports := range p.Ports {
		r.Ports = append(r.Ports, ports.String())
	}
	return r
}

// Figures are those of policy.Figures, in milliseconds.
type Figures struct {
	IdleBoundMS            int64 `json:"idle_bound_ms"`
	IdleBoundLatestMS      int64 `json:"idle_bound_latest_ms"`
	InFlightBoundMS        int64 `json:"in_flight_bound_ms"`
	InFlightBoundLatestMS  int64 `json:"in_flight_bound_latest_ms"`
	LostProbes             int   `json:"lost_probes"`
	SurvivesIdleMS         int64 `json:"survives_idle_ms"`
	SurvivesIdleFreshMS    int64 `json:"survives_idle_fresh_ms"`
	SurvivesInFlightMS     int64 `json:"survives_in_flight_ms"`
	SurvivesInFlightNearMS int64 `json:"survives_in_flight_near_ms"`
	ReportBoundMS          int64 `json:"report_bound_ms"`
	SurvivesReportMS       int64 `json:"survives_report_ms"`
	SilenceBoundMS         int64 `json:"silence_bound_ms"`
	SilenceLaterMS         int64 `json:"silence_later_ms"`
}

// NewFigures puts figures into the words of the API.
func NewFigures(f *policy.Figures) Figures {
	ms := time.Duration.Milliseconds
	return Figures{
		IdleBoundMS:            ms(f.IdleBound),
		IdleBoundLatestMS:      ms(f.IdleBoundLatest),
		InFlightBoundMS:        ms(f.InFlightBound),
		InFlightBoundLatestMS:  ms(f.InFlightBoundLatest),
		LostProbes:             f.LostProbes,
		SurvivesIdleMS:         ms(f.SurvivesIdle),
		SurvivesIdleFreshMS:    ms(f.SurvivesIdleFresh),
		SurvivesInFlightMS:     ms(f.SurvivesInFlight),
		SurvivesInFlightNearMS: ms(f.SurvivesInFlightNear),
		ReportBoundMS:          ms(f.ReportBound),
		SurvivesReportMS:       ms(f.SurvivesReport),
		SilenceBoundMS:         ms(f.SilenceBound),
		SilenceLaterMS:         ms(f.SilenceLater),
	}
}

// Probed is the answer to POST /v1/sockets/probe.
type Probed struct {
	Schema int `json:"schema"` // set by the server
	// Result has the action none, whatever the verdict.
	Result report.Result `json:"result"`
}
