// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/sockhealth/sockhealth/internal/api"
	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/coverage"
)

// explanationRows writes an explanation for people.
func explanationRows(x *api.Explanation) [][]string {
	s, d := &x.Socket, &x.Detail
	rows := [][]string{
		{"connection", fmt.Sprintf("%s -> %s, direction %s, %s", s.Local, s.Peer, direction(x), d.Family)},
		{"socket", fmt.Sprintf("cookie %d, netns %d, user %d", s.Cookie, s.Netns, s.UID)},
	}
	if s.ContainerID != "" || s.PodUID != "" {
		rows = append(rows, []string{"container", dash(s.ContainerID) + ", pod " + dash(s.PodUID)})
	}
	rows = append(rows, []string{"policy", inForce(x)})
	if x.Remedy != "" {
		rows = append(rows, []string{"", "[" + x.Remedy + "]"})
	}
	if x.Rule != nil {
		rows = append(rows, []string{"rule", ruleText(x.Rule)})
	}
	set := "none set"
	if s.Options != (api.SocketOptions{}) {
		set = "set " + options(s.Options)
	}
	rows = append(rows, []string{"options", set})
	if s.Guarded {
		rows = append(rows, []string{"", fmt.Sprintf("guarded: the peer answers and does not read, so that the user timeout is %s; %s comes back when it reads or stops answering",
			ms(s.Options.UserTimeoutMS), ms(d.Effective.UserTimeoutMS))})
	}
	if d.Recorded {
		rows = append(rows,
			[]string{"", "given " + options(d.Effective) + ", by the policy " + options(s.Policed) +
				", asked for by the application " + options(s.App)},
			came(x))
	}
	rows = append(rows,
		[]string{"idle bound", bound(s.IdleBoundMS, "after the last packet"+guardedUntil(s, ", once the peer has read everything"))},
		[]string{"in-flight bound", inFlightBound(x)},
		[]string{"state", s.State + trouble(s)},
		[]string{"received", fmt.Sprintf("%d bytes%s, %d of them unread here", s.BytesReceived, since(s.BytesReceived, s.LastDataMS), s.Unread)},
		[]string{"sent", fmt.Sprintf("%d bytes acknowledged, %d not; the peer takes %d more", s.BytesAcked, d.Unacked, d.SendWindow)},
		[]string{"last packet", ms(s.LastPacketMS) + " ago"},
		[]string{"round trip", roundTrip(d.SRTTUS)},
		[]string{"way out", wayOut(d)},
	)
	if x.Rule != nil && x.Unmanaged == "" {
		rows = append(rows, []string{"with a report", reportText(x)})
	}
	return rows
}

// direction says who opened the connection, and whether that is known.
func direction(x *api.Explanation) string {
	switch d := &x.Detail; {
	case d.Ambiguous:
		return x.Socket.Direction + " (a guess, so that it is never closed)"
	case d.Adopted:
		return x.Socket.Direction + " (inferred from the listeners)"
	}
	return x.Socket.Direction
}

// came says how the connection came under its policy.
func came(x *api.Explanation) []string {
	when := ms(x.Socket.AgeMS) + " ago"
	if x.Detail.Pending {
		when += "; not all of its options are set yet"
	}
	if x.Detail.Adopted {
		return []string{"adopted", when}
	}
	return []string{"opened", when}
}

// inForce names the policy that is in force, or says why none is.
func inForce(x *api.Explanation) string {
	switch x.Unmanaged {
	case "":
		return x.Socket.Policy
	case "no_policy":
		if x.Rule != nil {
			return "none: the policy that it opened under is gone; opened now it would get the rule below"
		}
		return "none: no policy names the peer, the connection is left as it is"
	}
	for reason, why := range map[coverage.Reason]string{
		coverage.Older:       "the programs did not see it open, it is older than they are; the rule below names it",
		coverage.NotInCgroup: "it was made outside the agent's cgroup, where the programs see nothing; the rule below names it",
		coverage.Ignored:     "the programs did not see it open, and the rule below leaves such alone (existing: ignore)",
		coverage.MPTCP:       "a subflow of Multipath TCP is not ours to touch",
		coverage.MD5OrAO:     "its segments are signed (TCP-MD5 or TCP-AO), it is not ours to touch",
		coverage.Repair:      "it is in repair mode, not ours to touch",
		coverage.Kernel:      "the kernel uses it itself, and the rule below does not manage such (kernel_sockets)",
		coverage.Orphan:      "no process has it open any more",
	} {
		if x.Unmanaged == string(reason) {
			return "none: " + why
		}
	}
	return "none: " + x.Unmanaged
}

func ruleText(r *api.Rule) string {
	ports := "every port"
	if len(r.Ports) > 0 {
		ports = "ports " + strings.Join(r.Ports, ", ")
	}
	text := fmt.Sprintf("%s (%s:%d), cidr %s, %s, %s, %s", r.Name, r.File, r.Line, r.CIDR, ports, r.Directions, options(r.Options))
	if r.Observe {
		text += ", observed only: nothing is closed"
	}
	return text
}

// bound writes how long a dead connection lives.
func bound(milliseconds int64, when string) string {
	if milliseconds == 0 {
		return "none by these options"
	}
	return ms(milliseconds) + " " + when
}

// guardedUntil is what to add of a guarded connection.
func guardedUntil(s *api.Socket, text string) string {
	if !s.Guarded {
		return ""
	}
	return text
}

// inFlightBound writes how long a connection lives that has data in flight. What is
// guarded ends by what it gets back, and by when the guard next looks.
func inFlightBound(x *api.Explanation) string {
	if !x.Socket.Guarded {
		return bound(x.Socket.InFlightBoundMS, "after the first send")
	}
	interval := "one look of the guard"
	if every := x.Detail.GuardIntervalMS; every > 0 {
		interval = "up to " + ms(every)
	}
	return fmt.Sprintf("%s and %s after the last packet, once the peer stops answering (before Linux 6.15 up to 3 minutes, or six times that)",
		ms(x.Detail.Effective.UserTimeoutMS), interval)
}

// trouble says what the kernel waits for.
func trouble(s *api.Socket) string {
	text := ""
	if s.Retransmits > 0 {
		text += fmt.Sprintf(", %d retransmission timeouts in a row", s.Retransmits)
	}
	if s.ProbesOut > 0 {
		text += fmt.Sprintf(", %d probes unanswered", s.ProbesOut)
	}
	return text
}

// since says when payload came, where any did.
func since(bytes uint64, milliseconds int64) string {
	if bytes == 0 {
		return ""
	}
	return ", the last " + ms(milliseconds) + " ago"
}

func roundTrip(us int64) string {
	if us == 0 {
		return "not measured"
	}
	return (time.Duration(us) * time.Microsecond).String()
}

// wayOut says how packets leave, and what forbids to probe there.
func wayOut(d *api.Detail) string {
	var parts []string
	switch {
	case d.LeavesBy == 0:
		parts = append(parts, "no cached route")
	case d.LinkUp:
		parts = append(parts, fmt.Sprintf("device %d, up", d.LeavesBy))
	default:
		parts = append(parts, fmt.Sprintf("device %d, down or without carrier", d.LeavesBy))
	}
	if d.Ifindex != 0 {
		parts = append(parts, fmt.Sprintf("bound to device %d", d.Ifindex))
	}
	if d.Mark != 0 {
		parts = append(parts, fmt.Sprintf("mark %#x", d.Mark))
	}
	for _, never := range []struct {
		is   bool
		text string
	}{
		{d.MPTCP, "an MPTCP subflow: never judged"},
		{d.MD5OrAO, "segments are signed (TCP-MD5 or TCP-AO): never judged"},
		{d.Repair, "in repair mode: never judged"},
	} {
		if never.is {
			parts = append(parts, never.text)
		}
	}
	return strings.Join(parts, ", ")
}

// reportText says what a report would do.
func reportText(x *api.Explanation) string {
	r, f := x.Rule, x.Figures
	if x.Socket.State == conn.SynSent.String() {
		text := "unknown (connecting), nothing is closed: connect() is not bounded by this rule (connect_timeout)"
		if r.ConnectTimeoutMS > 0 {
			text = "unknown (connecting), nothing is closed: connect() is bounded by connect_timeout, " + ms(r.ConnectTimeoutMS)
		}
		return text
	}
	text := fmt.Sprintf("judged within %s by up to %d attempts", ms(f.ReportBoundMS), r.Attempts)
	if a := r.AppProbe; a != nil {
		text += fmt.Sprintf("; where the path answers, %s is asked for up to %s", a.Kind, ms(a.TimeoutMS))
		if a.CloseHung {
			text += " and its silence closes"
		}
	}
	if r.SilenceMS > 0 {
		text += "; without a report where a request stays unanswered for " + ms(r.SilenceMS)
	}
	if r.CloseSilentAfterMS > 0 {
		text += "; closed after " + ms(r.CloseSilentAfterMS) + " without payload for a call"
	}
	return text
}
