// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"math"
	"strconv"
	"time"
)

// Slack is how much later than its figure a moment may come on a machine with
// time to spare. Timers fire late, never early: the kernel's timer wheel rounds a
// timer up by as much as an eighth, and a keepalive's end is the sum of several.
// How late the timers of a run's client fired at worst, measured meanwhile, comes
// on top.
const Slack = 1500 * time.Millisecond

// maxLate is how late timers may fire before the figures of a run mean nothing.
const maxLate = 5 * time.Second

// Units of a Figure.
const (
	UnitCount   = "count"
	UnitSeconds = "seconds"
)

// Figure is one measured number and the bounds it must keep.
type Figure struct {
	Name string
	Unit string // UnitCount or UnitSeconds
	// Min and Max include themselves. Max is +Inf where there is none, and NaN
	// where it is the time of what did not happen.
	Min, Max float64
	// Measured is NaN where the thing did not happen, which never holds.
	Measured float64
}

// Held reports whether the figure keeps its bounds.
func (f Figure) Held() bool { return f.Measured >= f.Min && f.Measured <= f.Max }

// String says what was measured and wanted: "failure after: 3.9 s, want 2 s to 3.5 s".
func (f Figure) String() string {
	measured := f.value(f.Measured)
	switch {
	case math.IsInf(f.Max, 1):
		return fmt.Sprintf("%s: %s, want at least %s", f.Name, measured, f.value(f.Min))
	case f.Min == f.Max:
		return fmt.Sprintf("%s: %s, want %s", f.Name, measured, f.value(f.Min))
	}
	return fmt.Sprintf("%s: %s, want %s to %s", f.Name, measured, f.value(f.Min), f.value(f.Max))
}

func (f Figure) value(v float64) string {
	if math.IsNaN(v) {
		return "never"
	}
	number := strconv.FormatFloat(math.Round(v*1000)/1000, 'f', -1, 64)
	if f.Unit == UnitSeconds {
		return number + " s"
	}
	return number
}

// exactly is a count that must be n.
func exactly(name string, measured, n int) Figure {
	return Figure{Name: name, Unit: UnitCount, Measured: float64(measured), Min: float64(n), Max: float64(n)}
}

// atLeast is a count that must be n or more.
func atLeast(name string, measured, n int) Figure {
	return Figure{Name: name, Unit: UnitCount, Measured: float64(measured), Min: float64(n), Max: math.Inf(1)}
}

// between is a time. A negative time says that it never came,
// which holds nothing.
func between(name string, measured, from, to time.Duration) Figure {
	f := Figure{Name: name, Unit: UnitSeconds, Measured: measured.Seconds(), Min: from.Seconds(), Max: to.Seconds()}
	if measured < 0 {
		f.Measured = math.NaN()
	}
	if to < 0 {
		f.Max = math.NaN()
	}
	return f
}

// slack is how much later than its figure a time of one run may come.
type slack time.Duration

// late is a time that may come that much after its figure.
func (s slack) late(name string, measured, figure time.Duration) Figure {
	return between(name, measured, figure, figure+time.Duration(s))
}

// punctual is how late a client's timers fired.
func punctual(late time.Duration) Figure {
	return between("lateness of the client's timers (run again on a quieter machine)", late, 0, maxLate)
}

// never is the time of what did not happen.
const never = time.Duration(-1)
