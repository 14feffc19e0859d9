// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
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
		blocks[i] = head + e.rule(a) + a.Figures.rows()
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

// rows renders the figures in two columns, each row after a newline.
func (f Figures) rows() string {
	var b strings.Builder
	put := func(label, format string, args ...any) {
		fmt.Fprintf(&b, row, label, fmt.Sprintf(format, args...))
	}
	put("idle bound", "%s after the last packet (%s with the latest timers)", most(f.IdleBound), most(f.IdleBoundLatest))
	put("in-flight bound", "%s after the first send (%s with the latest timers)", most(f.InFlightBound), most(f.InFlightBoundLatest))
	put("lost probes forgiven", "%d in a row", f.LostProbes)
	if f.SurvivesIdle > 0 {
		put("outage survived", "idle: any up to %s, up to %s where it begins right after a packet", least(f.SurvivesIdle), least(f.SurvivesIdleFresh))
	} else {
		put("outage survived", "idle: only up to %s where it begins right after a packet", least(f.SurvivesIdleFresh))
	}
	put("", "in flight: any up to %s, up to %s on a near path", least(f.SurvivesInFlight), least(f.SurvivesInFlightNear))
	put("with a report", "judged within %s; survived where the path is well %s after the report", most(f.ReportBound), least(f.SurvivesReport))
	return b.String()
}

// most and least write seconds with one decimal at most, rounded so that the
// figure never promises too much.
func most(d time.Duration) string  { return seconds(math.Ceil(d.Seconds()*10 - 1e-6)) }
func least(d time.Duration) string { return seconds(math.Floor(d.Seconds()*10 + 1e-6)) }

func seconds(tenths float64) string {
	return strconv.FormatFloat(tenths/10, 'f', -1, 64) + " s"
}
