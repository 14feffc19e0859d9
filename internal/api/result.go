// SPDX-License-Identifier: Apache-2.0

package api

import (
	"net/netip"

	"github.com/sockhealth/sockhealth/internal/agent"
	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/report"
)

// response puts the results into the words of the API.
func response(results []agent.Result) report.Response {
	out := report.Response{Results: make([]report.Result, 0, len(results))}
	for i := range results {
		out.Results = append(out.Results, result(&results[i]))
	}
	return out
}

func result(r *agent.Result) report.Result {
	e := &r.Evidence
	return report.Result{
		Local:  addrText(r.ID.Local),
		Peer:   addrText(r.ID.Remote),
		Cookie: r.ID.Cookie,
		Policy: r.Policy, Revision: r.Revision,
		Verdict: string(r.Verdict),
		Reason:  r.Reason,
		Action:  string(r.Action),
		Frozen:  string(r.Frozen),
		Evidence: report.Evidence{
			State:            stateText(e.State),
			PayloadSinceCall: e.PayloadSinceCall,
			BytesReceived:    e.BytesReceived,
			BytesAcked:       e.BytesAcked,
			Unread:           e.Unread,
			InFlight:         e.InFlight,
			Delivery:         string(r.Delivery),
			Unacked:          e.Unacked,
			Unsent:           e.Unsent,
			LastDataMS:       e.DataAge.Milliseconds(),
			LastPacketMS:     e.PacketAge.Milliseconds(),
			ProbesSent:       e.ProbesSent,
			ProbeAnswered:    e.ProbeAnswered,
			WindowMS:         e.Window.Milliseconds(),
			AppProbe:         e.App.String(),
			CallMS:           e.CallAge.Milliseconds(),
			DurationMS:       r.Duration.Milliseconds(),
		},
	}
}

// addrText returns "" for an address that is not known.
func addrText(ap netip.AddrPort) string {
	if !ap.IsValid() {
		return ""
	}
	return ap.String()
}

// stateText returns "" for the state of a socket that was not found.
func stateText(s conn.State) string {
	if s == 0 {
		return ""
	}
	return s.String()
}
