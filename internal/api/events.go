// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"github.com/sockhealth/sockhealth/internal/agent"
)

// EventSource remembers the last things that happened.
type EventSource interface {
	// After returns the first entry kept whose number is above since, with Seq 0
	// where there is none yet; the number of the newest there is, 0 for none; and
	// what the next one closes. Numbers count without gaps: what is no longer kept
	// is missing among them.
	After(since uint64) (e agent.Entry, last uint64, more <-chan struct{})
}

// lastWords is how long a client may take to read the end of a stream.
const lastWords = time.Second

// stream answers GET /v1/events: one JSON object a line, each sent at once. A
// client that reads slowly is waited for, and loses the oldest meanwhile.
func (h *admin) stream(w http.ResponseWriter, r *http.Request) {
	if !onlyMethod(w, r, http.MethodGet) {
		return
	}
	q, ok := eventsOf(w, r)
	if !ok {
		return
	}
	if _, ok := wholeBody(w, r); !ok {
		return
	}
	_, newest, _ := h.events.After(q.Since)
	if q.Since > newest {
		refuse(w, http.StatusBadRequest, `query parameter "since" is %d, and the newest event has number %d: they count from 1 again since the agent was started anew`, q.Since, newest)
		return
	}
	if q.Policy != "" && !h.named(q.Policy) {
		refuse(w, http.StatusBadRequest, `query parameter "policy" is %s, which is no entry of the policy file in force, nor of an event that is kept: the file has %s`, quote(q.Policy), takes(h.of.Policies()))
		return
	}
	out := http.NewResponseController(w)
	_ = out.SetWriteDeadline(time.Time{}) // an earlier answer's
	// Shutdown does not wait for long for a client that reads nothing.
	defer context.AfterFunc(h.later.ctx, func() { _ = out.SetWriteDeadline(time.Now().Add(lastWords)) })()
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	if out.Flush() != nil {
		return
	}
	lines := &eventLines{query: q, from: q.from(time.Now()), to: json.NewEncoder(w), flush: out.Flush, last: q.Since}
	h.tell(r.Context(), lines, newest)
}

// named reports whether there can be events of a policy: it is in force, or there are
// some, from before it was renamed.
func (h *admin) named(policy string) bool {
	if slices.Contains(h.of.Policies(), policy) {
		return true
	}
	for e, _, _ := h.events.After(0); e.Seq != 0; e, _, _ = h.events.After(e.Seq) {
		if e.Policy == policy {
			return true
		}
	}
	return false
}

// tell writes what is kept, up to the newest there was, and with follow goes on.
func (h *admin) tell(ctx context.Context, lines *eventLines, newest uint64) {
	for {
		e, _, more := h.events.After(lines.last)
		switch {
		case e.Seq != 0 && (lines.query.Follow || e.Seq <= newest):
			if lines.write(&e) != nil || lines.query.Follow && h.later.ctx.Err() != nil {
				return
			}
			continue
		case !lines.query.Follow:
			return
		}
		select {
		case <-more:
		case <-ctx.Done():
			return
		case <-h.later.ctx.Done():
			return
		}
	}
}

// eventLines writes the events that were asked for.
type eventLines struct {
	query EventQuery
	from  time.Time // zero: whenever
	to    *json.Encoder
	flush func() error
	last  uint64 // number of the last entry, 0: none so far
	lost  uint64 // since the last line
}

// write writes an entry that is asked for. Its error says that the client is
// gone.
func (l *eventLines) write(e *agent.Entry) error {
	missing := e.Seq - l.last - 1
	first := l.last == 0
	l.last = e.Seq
	if !l.from.IsZero() && e.Noted.Before(l.from) {
		return nil // too old to be asked for, and what is missing before it, too
	}
	if !first || !l.from.IsZero() {
		l.lost += missing
	}
	if e.Time.Before(l.from) || !l.query.matches(e) {
		return nil
	}
	if err := l.to.Encode(newEvent(e, l.lost)); err != nil {
		return err
	}
	l.lost = 0
	return l.flush()
}
