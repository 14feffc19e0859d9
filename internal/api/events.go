// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/sockhealth/sockhealth/internal/agent"
)

// EventSource remembers the last things that happened.
type EventSource interface {
	// Subscribe streams the entries after the one numbered since, as far as
	// they are kept, and then the new ones, until cancel, which closes the
	// channel. The entries kept are in the channel when it returns. Its
	// Seq counts without gaps; who reads too slowly loses the oldest.
	Subscribe(since uint64) (entries <-chan agent.Entry, cancel func())
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
	out := http.NewResponseController(w)
	_ = out.SetWriteDeadline(time.Time{}) // an earlier answer's
	// Shutdown does not wait for long for a client that reads nothing.
	defer context.AfterFunc(h.later.ctx, func() { _ = out.SetWriteDeadline(time.Now().Add(lastWords)) })()
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	if out.Flush() != nil {
		return
	}
	entries, cancel := h.events.Subscribe(q.Since)
	defer cancel()
	lines := &eventLines{query: q, to: json.NewEncoder(w), flush: out.Flush, last: q.Since}
	for range len(entries) {
		select {
		case e := <-entries:
			if lines.write(&e) != nil {
				return
			}
		default: // dropped meanwhile
		}
	}
	for q.Follow {
		select {
		case e, ok := <-entries:
			if !ok || lines.write(&e) != nil {
				return
			}
		case <-r.Context().Done():
			return
		case <-h.later.ctx.Done():
			return
		}
	}
}

// eventLines writes the events that were asked for.
type eventLines struct {
	query EventQuery
	to    *json.Encoder
	flush func() error
	last  uint64 // number of the last entry, 0: none so far
	lost  uint64 // since the last line
}

// write writes an entry that is asked for. Its error says that the client is
// gone.
func (l *eventLines) write(e *agent.Entry) error {
	if l.last != 0 && e.Seq > l.last+1 {
		l.lost += e.Seq - l.last - 1
	}
	l.last = e.Seq
	if !l.query.matches(e) {
		return nil
	}
	if err := l.to.Encode(newEvent(e, l.lost)); err != nil {
		return err
	}
	l.lost = 0
	return l.flush()
}
