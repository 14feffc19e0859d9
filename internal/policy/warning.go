// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"slices"
)

// Warnings returns what is right and may well not be meant, in the order of the file,
// for a kernel: with their places as mistakes have them.
func (p *Policy) Warnings(g Ground) []*Error {
	w := Errors{List: slices.Clone(p.hasty)}
	if !g.RTOCap {
		w.List = append(w.List, p.capped...)
	}
	w.sort()
	return w.List
}

// warn finds what an entry gives reason to.
func (p *Policy) warn(e *entry) {
	s := &e.settings
	at := func(message string, places ...pos) *Error {
		where, _ := firstGiven(append(places, e.at)...)
		return &Error{File: p.File, Line: where.line, Column: where.column, Message: "warning: " + message}
	}
	// A connection that is idle and well is probed by it, where its last word is its own.
	if due := late(s.idle.value) + silenceGrace; s.silence.value > 0 && s.silence.value < due {
		p.hasty = append(p.hasty, at(fmt.Sprintf("silence %s of %q ends before a keepalive is due after %s (idle %s x 9/8 + %s), so that connections that are idle and well may be probed for it: raise silence to %[3]s or shorten keepalive",
			short(s.silence.value), e.name, short(due), short(s.idle.value), short(silenceGrace)), s.silence.at, s.idle.at))
	}
	if s.inFlight.value == ByRTOCap {
		p.capped = append(p.capped, at(fmt.Sprintf("in_flight rto_cap of %q needs Linux 6.15, on this machine user_timeout %s bounds it instead: write in_flight: auto, or run that kernel",
			e.name, short(s.userTimeout.value)), s.inFlight.at))
	}
}
