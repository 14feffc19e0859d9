// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"log/slog"
	"time"

	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

// record counts a verdict, enters it into the journal and writes its line.
func (a *Agent) record(w *weighing, r *Result) {
	c := w.call
	a.stats.judged(r)
	level := slog.LevelInfo
	switch {
	case r.Action == ActionFailed || r.Verdict == verdict.LocalFault:
		level = slog.LevelError
	case r.Verdict == verdict.Unmanaged || r.Reason == verdict.ReasonNotFound || r.Reason == verdict.ReasonBusy:
		level = slog.LevelDebug // anybody can ask for any number of these
	}
	where := a.container(r.Cgroup)
	kept, now := *r, time.Now()
	seq := a.journal.add(Entry{
		Time: now, Noted: now, Kind: EntryVerdict, Policy: r.Policy, ID: r.ID, Container: where,
		Result: &kept, Reporter: c.reporter, UID: c.caller.UID, PID: c.caller.PID,
	})
	if !a.Log.Enabled(a.ctx, level) {
		return
	}
	failure := ""
	if w.failed != nil {
		failure = w.failed.Error()
	}
	attrs := []slog.Attr{
		slog.Uint64("seq", seq),
		slog.String("verdict", string(r.Verdict)),
		slog.String("reason", r.Reason),
		slog.String("action", string(r.Action)),
		slog.String("frozen", string(r.Frozen)),
		slog.String("err", failure),
		slog.String("policy", r.Policy),
		slog.String("revision", r.Revision),
		slog.String("local", r.ID.Local.String()),
		slog.String("peer", r.ID.Remote.String()),
		slog.Uint64("cookie", r.ID.Cookie),
		slog.Uint64("netns", uint64(r.ID.Netns)),
		slog.String("container_id", where.Container),
		slog.String("pod_uid", where.Pod),
	}
	attrs = append(attrs, evidenceAttrs(r)...)
	attrs = append(attrs,
		slog.String("reporter", c.reporter),
		slog.Uint64("uid", uint64(c.caller.UID)),
		slog.Int("pid", int(c.caller.PID)),
		slog.Any("probes", inJSON(append([]Attempt{}, r.Attempts...))),
		slog.Any("basis", inJSON(r.Basis)),
	)
	a.Log.LogAttrs(a.ctx, level, "verdict", attrs...)
}

// evidenceAttrs sums up what a verdict rests on.
func evidenceAttrs(r *Result) []slog.Attr {
	e, state := &r.Evidence, ""
	if e.State != 0 {
		state = e.State.String()
	}
	return []slog.Attr{
		slog.String("delivery", string(r.Delivery)),
		slog.String("state", state),
		slog.Bool("payload_since_call", e.PayloadSinceCall),
		slog.Uint64("bytes_received", e.BytesReceived),
		slog.Uint64("bytes_acked", e.BytesAcked),
		slog.Uint64("unread", uint64(e.Unread)),
		slog.Bool("in_flight", e.InFlight),
		slog.Uint64("unacked", uint64(e.Unacked)),
		slog.Uint64("unsent", uint64(e.Unsent)),
		slog.Int64("last_data_ms", e.DataAge.Milliseconds()),
		slog.Int64("last_packet_ms", e.PacketAge.Milliseconds()),
		slog.Int("probes_sent", e.ProbesSent),
		slog.Bool("probe_answered", e.ProbeAnswered),
		slog.Int64("window_ms", e.Window.Milliseconds()),
		slog.String("app", e.App.String()),
		slog.Int64("call_ms", e.CallAge.Milliseconds()),
		slog.Int64("duration_ms", r.Duration.Milliseconds()),
	}
}

// inJSON returns a value that stands as JSON in a log of either format: nested in
// one of JSON, quoted in one of text.
func inJSON(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil { // our own types
		b = []byte("null")
	}
	return b
}

// logEnd enters into journal and log how the kernel ended a connection.
func (a *Agent) logEnd(e *loader.Event, policy string) {
	kind := EntryEnd
	if e.Stall {
		kind = EntryStall
	}
	where := a.container(e.Cgroup)
	// It may have waited in the buffer for an agent to start.
	age := max(0, a.Now()-e.Time)
	now := time.Now()
	a.journal.add(Entry{Time: now.Add(-age), Noted: now, Kind: kind, Policy: policy, ID: e.ID, Container: where, Event: e})
	level := slog.LevelInfo
	if e.Stall || e.Cause == loader.CauseReset || e.Cause == loader.CauseDestroyed || e.Cause == loader.CauseConnect {
		level = slog.LevelDebug // the peer's or our own doing, or no end at all; applications tell of their connects
	}
	msg := "connection ended"
	switch {
	case e.Stall:
		msg = "connection stalled"
	case e.Cause == loader.CauseConnect:
		msg = "connect ended"
	}
	errno := ""
	if e.Errno != 0 {
		errno = e.Errno.Error()
	}
	a.Log.LogAttrs(a.ctx, level, msg,
		slog.String("cause", e.Cause.String()),
		slog.String("err", errno),
		slog.String("policy", policy),
		slog.String("local", e.Local.String()),
		slog.String("peer", e.Remote.String()),
		slog.Uint64("cookie", e.Cookie),
		slog.Uint64("netns", uint64(e.Netns)),
		slog.String("container_id", where.Container),
		slog.String("pod_uid", where.Pod),
		slog.String("direction", e.Direction.String()),
		slog.Uint64("bytes_received", e.BytesReceived),
		slog.Uint64("bytes_acked", e.BytesAcked),
		slog.Int("retransmits", int(e.Retransmits)),
		slog.Int("probes_out", int(e.ProbesOut)),
		slog.Int64("age_ms", age.Milliseconds()),
	)
}
