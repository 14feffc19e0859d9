// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
)

// Attempt is one question to the peer's kernel, for the record of a verdict.
type Attempt struct {
	// AtMS is when, in milliseconds from the report on. One of the connection's own
	// is as old as the look that saw it in the kernel's counters. It is negative
	// where another report about the same socket had begun the judgement.
	AtMS   int64         `json:"at_ms"`
	Kind   AttemptKind   `json:"kind"`
	Result AttemptResult `json:"result"`
}

// AttemptKind is how the question was asked.
type AttemptKind string

// Kinds. The last three are the kernel's by itself: it counts them, and the agent sees
// the counter between the first look and the last one. (Retransmissions into a window that
// was taken back are not counted, and seen by their time.)
const (
	probeKeepalive    AttemptKind = "keepalive" // the kernel's own, provoked
	probeSegment      AttemptKind = "segment"   // a raw segment of ours
	ownKeepalive      AttemptKind = "own_keepalive"
	ownWindowProbe    AttemptKind = "own_window_probe"
	ownRetransmission AttemptKind = "own_retransmission"
)

// AttemptKinds lists them, those of the agent first.
func AttemptKinds() []AttemptKind {
	return []AttemptKind{probeKeepalive, probeSegment, ownKeepalive, ownWindowProbe, ownRetransmission}
}

// AttemptResult is what became of sending it. Whether it was answered shows in the
// looks: nobody can tell which of several was.
type AttemptResult string

// Results.
const (
	attemptSent    AttemptResult = "sent"     // handed to the network, as far as the kernel tells
	attemptAsked   AttemptResult = "asked"    // the kernel was asked, and no counter shows that one left
	attemptBlocked AttemptResult = "blocked"  // refused by this host (EPERM)
	attemptNoRoute AttemptResult = "no_route" // no way to the peer
	attemptError   AttemptResult = "error"    // the log says why
)

// AttemptResults lists them.
func AttemptResults() []AttemptResult {
	return []AttemptResult{attemptSent, attemptAsked, attemptBlocked, attemptNoRoute, attemptError}
}

// maxAttempts bounds what the record of one verdict keeps of them: the first ones.
const maxAttempts = 64

// attempt is an Attempt before it is known whose report it is told of.
type attempt struct {
	at     time.Duration
	kind   AttemptKind
	result AttemptResult
}

// attempts are those of one judgement, in the order that they were seen.
type attempts []attempt

func (l *attempts) note(at time.Duration, kind AttemptKind, result AttemptResult) {
	if len(*l) < maxAttempts {
		*l = append(*l, attempt{at, kind, result})
	}
}

// saw takes from two looks what the kernel has sent between them: the keepalives
// that were provoked first, then what it sent by itself. An answer sets its counters
// back, so that what was answered before the look is not seen.
func (l *attempts) saw(before, after *conn.Snapshot) {
	for range advanced(before.ProbesOut, after.ProbesOut) {
		if l.left() {
			continue
		}
		kind := ownKeepalive
		if after.InFlight() { // it sends no keepalive then
			kind = ownWindowProbe
		}
		l.note(after.Taken, kind, attemptSent)
	}
	for range advanced(before.Retransmits, after.Retransmits) {
		l.note(after.Taken, ownRetransmission, attemptSent)
	}
}

// left says of the first keepalive that the kernel was asked for that it left.
func (l *attempts) left() bool {
	for i := range *l {
		if a := &(*l)[i]; a.result == attemptAsked {
			a.result = attemptSent
			return true
		}
	}
	return false
}

// told returns them for the record of a report.
func (l attempts) told(report time.Duration) []Attempt {
	out := make([]Attempt, 0, len(l))
	for _, a := range l {
		out = append(out, Attempt{AtMS: (a.at - report).Milliseconds(), Kind: a.kind, Result: a.result})
	}
	return out
}
