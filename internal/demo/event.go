// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// Kinds of events.
const (
	eventReady = "ready" // listening, or the pool is open
	eventSent  = "sent"  // a request goes out now
	eventDone  = "done"  // the last request sent has its outcome
)

// event is a line on the standard output of a client or a peer.
type event struct {
	Kind string `json:"kind"`
	// At is the moment on CLOCK_MONOTONIC, which all processes share.
	At time.Duration `json:"at_ns,omitempty"`
	// Pool holds the local addresses of a client's connections (ready).
	Pool []string `json:"pool,omitempty"`
	// Late is how late the client's timers fired at worst, so far (done).
	Late time.Duration `json:"late_ns,omitempty"`
	// Err, Server and Local are those of a Request (done).
	Err    string `json:"err,omitempty"`
	Server string `json:"server,omitempty"`
	Local  string `json:"local,omitempty"`
}

// emit writes one line.
func emit(w io.Writer, e any) error {
	if err := writeLine(w, e); err != nil {
		return fmt.Errorf("tell the demo: %w", err)
	}
	return nil
}

// writeLine writes v as one line of JSON, at once.
func writeLine(w io.Writer, v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(line, '\n'))
	return err
}
