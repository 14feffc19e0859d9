// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// Warnings returns what is right and may well not be meant, in the order of the file,
// for a kernel: with their places as mistakes have them.
func (p *Policy) Warnings(g Ground) []*Error {
	w := Errors{List: slices.Clone(p.warnings[g.RTOCap])}
	w.sort()
	return w.List
}

// warn finds what an entry gives reason to, on a kernel with TCP_RTO_MAX_MS and on one
// without.
func (p *Policy) warn(e *entry) {
	if p.warnings == nil {
		p.warnings = make(map[bool][]*Error)
	}
	peer := e.peer()
	for _, kernelCan := range []bool{false, true} {
		w := &warner{policy: p, entry: e, kernelCan: kernelCan}
		w.hasty()
		w.uncapped()
		w.unforgiving(&peer)
		w.once()
		w.unfinished(&peer)
	}
}

// warner finds them for one entry on one kind of kernel.
type warner struct {
	policy *Policy
	*entry
	kernelCan bool
}

// warnf adds one, at the first place that was given here or else at the entry.
func (w *warner) warnf(places []pos, format string, args ...any) {
	where, _ := firstGiven(append(places, w.at)...)
	list := &Error{File: w.policy.File, Line: where.line, Column: where.column, Message: "warning: " + fmt.Sprintf(format, args...)}
	w.policy.warnings[w.kernelCan] = append(w.policy.warnings[w.kernelCan], list)
}

// hasty: a connection that is idle and well is probed by a silence that ends before a
// keepalive is due, where its last word is its own.
func (w *warner) hasty() {
	s := &w.settings
	if due := late(s.idle.value) + silenceGrace; s.silence.value > 0 && s.silence.value < due {
		w.warnf([]pos{s.silence.at, s.idle.at}, "silence %s of %q ends before a keepalive is due after %s (idle %s x 9/8 + %s), so that connections that are idle and well may be probed for it: raise silence to %[3]s or shorten keepalive",
			short(s.silence.value), w.name, short(due), short(s.idle.value), short(silenceGrace))
	}
}

// uncapped: the kernel has not what is asked for.
func (w *warner) uncapped() {
	s := &w.settings
	if s.inFlight.value == ByRTOCap && !w.kernelCan {
		w.warnf([]pos{s.inFlight.at}, "in_flight rto_cap of %q needs Linux 6.15, on this machine user_timeout %s bounds it instead: write in_flight: auto, or run that kernel",
			w.name, short(s.userTimeout.value))
	}
}

// unforgiving: no keepalive may be lost, so that one packet decides over a connection
// that is well.
func (w *warner) unforgiving(peer *Peer) {
	s := &w.settings
	if peer.FiguresOn(Ground{RTOCap: w.kernelCan}).LostProbes > 0 {
		return
	}
	remedy := "shorten keepalive"
	if need := forgiving(s); s.inFlight.value != ByRTOCap || need <= longestCapped(s.idle.value, s.interval.value) {
		remedy = "raise user_timeout to " + short(need) + ", or shorten keepalive"
	}
	w.warnf([]pos{s.userTimeout.at, s.interval.at, s.idle.at, s.count.at}, "user_timeout %s of %q forgives no lost keepalive (idle %s, interval %s), so that one lost packet may end a connection that is idle and well: %s",
		short(s.userTimeout.value), w.name, short(s.idle.value), short(s.interval.value), remedy)
}

// forgiving is the least user timeout in whole seconds that forgives a lost keepalive,
// with the latest timers and whatever bounds data in flight.
func forgiving(s *settings) time.Duration {
	need := late(s.idle.value+s.interval.value) + time.Nanosecond // lostProbes
	if s.inFlight.value != ByUserTimeout {
		need = max(need, s.idle.value+2*s.interval.value) // Wanted's count
	}
	return (need + time.Second - 1).Truncate(time.Second)
}

// once: a connection is condemned by one question alone.
func (w *warner) once() {
	s := &w.settings
	if s.attempts.value > 1 {
		return
	}
	remedy := "raise attempts to 2 or more"
	if least := 2 * probeSpacing; s.window.value < least {
		remedy += " and window to " + short(least)
	}
	w.warnf([]pos{s.attempts.at, s.window.at}, "probe attempts 1 of %q asks a connection that is judged only once, so that one lost packet may close one that is well: %s", w.name, remedy)
}

// unfinished: what is sent is text without the end of a line. Whoever reads lines waits
// for it and stays silent, which looks like a process that hangs.
func (w *warner) unfinished(peer *Peer) {
	a := peer.AppProbe
	if a == nil || a.Kind != AppSend || !a.CloseHung || !isText(a.Send) || bytes.HasSuffix(a.Send, []byte("\n")) {
		return
	}
	what, remedy := "data", `put \r\n at its end`
	if whole := strconv.Quote(string(bytes.TrimRight(a.Send, "\r")) + "\r\n"); len(whole) <= maxShown {
		remedy = "write " + whole
	}
	if w.app.hex.given() {
		what, remedy = "hex", "put 0d 0a at its end"
	}
	w.warnf([]pos{w.app.data.at, w.app.hex.at}, "%s of %q ends no line, and a peer that reads lines stays silent for that, which closes connections that are well: %s, or write on_hung: none", what, w.name, remedy)
}

// isText reports whether b is text as people write it in a terminal.
func isText(b []byte) bool {
	return !bytes.ContainsFunc(b, func(r rune) bool {
		return (r < ' ' || r > '~') && r != '\t' && r != '\r' && r != '\n'
	})
}
