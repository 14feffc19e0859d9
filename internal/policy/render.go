// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
)

// String renders the explanation for people, in seconds, one block for each
// direction. It ends without a newline.
func (e Explanation) String() string {
	blocks := make([]string, len(e.Answers))
	for i, a := range e.Answers {
		head := fmt.Sprintf("%s %s", e.Service, a.Direction)
		if a.Peer == nil {
			blocks[i] = head + e.nobody(a)
			continue
		}
		blocks[i] = head + e.rule(a) + a.rows(e.Ground) + e.budget(a)
	}
	return strings.Join(blocks, "\n\n")
}

const row = "\n  %-21s %s"

func (e Explanation) rule(a Answer) string {
	return fmt.Sprintf(row, "policy", fmt.Sprintf("%s, cidr %s (%s:%d)", a.Peer.Name, a.CIDR.Prefix, e.File, a.CIDR.Line))
}

func (e Explanation) nobody(a Answer) string {
	var b strings.Builder
	fmt.Fprintf(&b, row, "policy", "none: such a connection is left as it is")
	for _, m := range a.NearMisses {
		fmt.Fprintf(&b, row, "near", fmt.Sprintf("%s, cidr %s (%s:%d), but %s", m.Peer.Name, m.CIDR.Prefix, e.File, m.CIDR.Line, m.Why))
	}
	return b.String()
}

// rows renders the figures and what is not the default in two columns, each
// row after a newline.
func (a Answer) rows(g Ground) string {
	var b strings.Builder
	put := func(label, format string, args ...any) {
		fmt.Fprintf(&b, row, label, fmt.Sprintf(format, args...))
	}
	f, loose := a.Figures, ""
	switch a.Peer.Override {
	case Enforce:
		put("app override", "enforce: these values hold whatever the application sets")
	case Allow:
		put("app override", "allow: the figures hold where the application sets none of these options")
		loose = ", the application may loosen this"
	}
	if by := a.Peer.inFlight(g); by != "" {
		put("in flight", "%s", by)
	}
	put("idle bound", "%s after the last packet (%s with the latest timers)%s", most(f.IdleBound), most(f.IdleBoundLatest), loose)
	put("in-flight bound", "%s after the first send (%s with the latest timers)%s", most(f.InFlightBound), most(f.InFlightBoundLatest), loose)
	put("lost probes forgiven", "%d in a row", f.LostProbes)
	if f.SurvivesIdle > 0 {
		put("outage survived", "idle: any up to %s, up to %s where it begins right after a packet", least(f.SurvivesIdle), least(f.SurvivesIdleFresh))
	} else {
		put("outage survived", "idle: only up to %s where it begins right after a packet", least(f.SurvivesIdleFresh))
	}
	put("", "in flight: any up to %s, up to %s on a near path", least(f.SurvivesInFlight), least(f.SurvivesInFlightNear))
	if c := a.Peer.ConnectTimeout; c > 0 && a.Direction == conn.Outbound {
		put("connect bound", "%s after the first SYN (%s with the latest timers)%s", most(c), most(late(c)), loose)
	}
	judged := "judged"
	if a.Peer.AppProbeOf(a.Direction) != nil {
		judged = "path judged"
	}
	put("with a report", "%s within %s; survived where the path is well %s after the report", judged, most(f.ReportBound), least(f.SurvivesReport))
	a.judging(put)
	return b.String()
}

// budget says how fast is closed what is judged dead, where that is not the default.
func (e Explanation) budget(a Answer) string {
	if e.Limits == DefaultLimits() || a.Peer.Observe {
		return ""
	}
	return fmt.Sprintf(row, "budget", fmt.Sprintf("at most %d closes a second to one address, %d on the node; what exceeds it is deferred",
		e.Limits.PerPeer, e.Limits.PerNode))
}

// judging puts what a judgement does beyond closing a connection whose path is
// dead.
func (a Answer) judging(put func(label, format string, args ...any)) {
	p, closed := a.Peer, "closed"
	if p.Observe {
		closed = "recorded"
	}
	switch q := p.AppProbeOf(a.Direction); {
	case q != nil && q.CloseHung:
		put("application", "asked where the path answers: %s; not one byte in %s: %s", q, most(q.Timeout), closed)
	case q != nil:
		put("application", "asked where the path answers: %s; not one byte in %s: recorded", q, most(q.Timeout))
	case p.AppProbe != nil:
		put("application", "not asked: the peer of an inbound connection is a client")
	}
	if p.CloseSilentAfter > 0 {
		put("silent limit", "a reported call without payload for %s: %s, although the path answers", most(p.CloseSilentAfter), closed)
	}
	if f := a.Figures; p.Silence > 0 {
		what := "a request unanswered"
		if a.Direction == conn.Inbound {
			what = "data unacknowledged"
		}
		put("silence", "%s for %s: judged without a report", what, most(p.Silence))
		put("", "a dead peer is found %s after that was sent, or %s after its last packet, whichever is later", most(f.SilenceBound), most(f.SilenceLater))
	}
	if p.LeaveExisting {
		put("existing", "ignored: a connection that was open before the agent gets no bounds, and is not judged")
	}
	if p.KernelSockets {
		put("kernel sockets", "managed: bounded, judged and closed like an application's")
	}
	if p.Observe {
		put("action", "observe: what is judged dead is recorded, not closed; the bounds hold all the same")
	}
}

// String returns the question, such as "http GET /healthz at port 7101".
func (a *AppProbe) String() string {
	what := fmt.Sprintf("send %d bytes", len(a.Send))
	switch a.Kind {
	case AppHTTP:
		what = "http GET " + clip(a.Path)
	case AppGRPC:
		what = "grpc health of the server"
		if a.Service != "" {
			what = "grpc health of " + clip(a.Service)
		}
	}
	if a.Port == 0 {
		return what + " at the same port"
	}
	return fmt.Sprintf("%s at port %d", what, a.Port)
}

// most and least write seconds with one decimal at most, rounded so that the
// figure never promises too much.
func most(d time.Duration) string  { return seconds(math.Ceil(d.Seconds()*10 - 1e-6)) }
func least(d time.Duration) string { return seconds(math.Floor(d.Seconds()*10 + 1e-6)) }

func seconds(tenths float64) string {
	return strconv.FormatFloat(tenths/10, 'f', -1, 64) + " s"
}
