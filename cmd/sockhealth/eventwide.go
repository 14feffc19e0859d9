// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/sockhealth/sockhealth/internal/agent"
	"github.com/sockhealth/sockhealth/internal/api"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

// basisLines writes, for people, what a verdict was decided on. Moments count from
// the report.
func basisLines(e *api.Event) string {
	v := e.Verdict
	if v == nil {
		return ""
	}
	b := &strings.Builder{}
	line := func(name, text string) { fmt.Fprintf(b, "    %-10s  %s\n", name, text) }
	line("policy", fmt.Sprintf("%s, revision %s", dash(e.Policy), dash(v.Revision)))
	if basis := v.Basis; basis != nil {
		if agent.OfCall(v.Reporter) {
			line("call", "written at "+moment(basis.SentNS)+limits(basis))
		}
		line("first look", sight(&basis.Before))
		if len(v.Probes) > 0 {
			line("probes", probes(v.Probes))
		}
		if p := basis.Probe; p != nil {
			line("", fmt.Sprintf("%d went out, silence condemns from %d on, in a window of %s", p.Sent, p.Wanted, time.Duration(p.WindowNS)))
		}
		if basis.App != "" {
			line("application", strings.ReplaceAll(basis.App, "_", " "))
		}
		if basis.After != nil {
			line("last look", sight(basis.After))
		}
	}
	return b.String()
}

// limits says what the policy makes of an application that does not answer.
func limits(b *verdict.Basis) string {
	text := ""
	if b.CloseHung {
		text += ", closed where the application hangs"
	}
	if b.SilentLimitNS > 0 {
		text += ", closed after " + time.Duration(b.SilentLimitNS).String() + " without payload"
	}
	return text
}

// moment writes when something was, before or after the report.
func moment(ns int64) string {
	return fmt.Sprintf("%+dms", time.Duration(ns).Round(time.Millisecond).Milliseconds())
}

func probes(all []agent.Attempt) string {
	words := make([]string, 0, len(all))
	for _, a := range all {
		words = append(words, fmt.Sprintf("%+dms %s %s", a.AtMS, strings.ReplaceAll(string(a.Kind), "_", " "), strings.ReplaceAll(string(a.Result), "_", " ")))
	}
	return strings.Join(words, ", ")
}

// sight writes one look.
func sight(s *verdict.Sight) string {
	if !s.Found {
		if s.Ended == "" {
			return "no such socket"
		}
		return "no such socket any more: " + s.Ended
	}
	age := func(ns int64) string { return time.Duration(ns).Round(time.Millisecond).String() }
	text := fmt.Sprintf("at %s %s, received %d, acked %d; last payload %s, last packet %s, last sent %s before",
		moment(s.TakenNS), s.State, s.TCPBytesReceived, s.TCPBytesAcked, age(s.DataAgeNS), age(s.PacketAgeNS), age(s.SendAgeNS))
	if s.Unread > 0 {
		text += fmt.Sprintf("; %d unread", s.Unread)
	}
	if s.WriteSeq != s.SndUna {
		text += fmt.Sprintf("; %d unacknowledged, %d of them unsent, the peer takes %d", s.WriteSeq-s.SndUna, s.WriteSeq-s.SndNxt, s.SendWindow)
	}
	for _, is := range []struct {
		so   bool
		text string
	}{
		{s.Retransmits > 0, fmt.Sprintf("%d retransmission timeouts in a row", s.Retransmits)},
		{s.ProbesOut > 0, fmt.Sprintf("%d probes unanswered", s.ProbesOut)},
		{!s.LinkUp, "no carrier"},
		{s.Locked, "locked"},
		{s.Backlog, "segments wait behind the lock"},
		{s.Orphan, "orphan"},
		{s.MPTCP, "MPTCP"},
		{s.MD5OrAO, "signed"},
		{s.Repair, "in repair"},
		{s.Direction == "", "no record"},
		{s.Ambiguous, "direction uncertain"},
	} {
		if is.so {
			text += "; " + is.text
		}
	}
	return text
}
