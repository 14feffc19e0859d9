// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
)

// setting is one value and where it was given; a zero place means it was
// inherited. A bad value has been reported and takes part in no further check.
type setting[T any] struct {
	value T
	at    pos
	bad   bool
}

func (s setting[T]) given() bool { return s.at != pos{} }

// mark is a setting that says no more than that it was given.
type mark = setting[struct{}]

// settings are the keys that may stand in defaults and in a peer.
type settings struct {
	userTimeout, idle, interval setting[time.Duration]
	count                       setting[int]
	window                      setting[time.Duration]
	attempts                    setting[int]
	directions                  setting[Directions]
	override                    setting[Override]
	observe                     setting[bool]
	leaveExisting               setting[bool]
	kernelSockets               setting[bool]
	silent                      setting[time.Duration] // 0: off
	silence                     setting[time.Duration] // 0: off
	connect                     setting[time.Duration] // 0: off
	inFlight                    setting[InFlight]
}

// builtin are the values where the file gives none.
func builtin() settings {
	return settings{
		userTimeout: setting[time.Duration]{value: 15 * time.Second},
		idle:        setting[time.Duration]{value: 5 * time.Second},
		interval:    setting[time.Duration]{value: 2 * time.Second},
		count:       setting[int]{value: 5},
		window:      setting[time.Duration]{value: 3 * time.Second},
		attempts:    setting[int]{value: 5},
		directions:  setting[Directions]{value: Both},
		override:    setting[Override]{value: Tighten},
	}
}

// over fills what s does not give from below. The filled values count as
// inherited.
func (s settings) over(below settings) settings {
	inherit(&s.userTimeout, below.userTimeout)
	inherit(&s.idle, below.idle)
	inherit(&s.interval, below.interval)
	inherit(&s.count, below.count)
	inherit(&s.window, below.window)
	inherit(&s.attempts, below.attempts)
	inherit(&s.directions, below.directions)
	inherit(&s.override, below.override)
	inherit(&s.observe, below.observe)
	inherit(&s.leaveExisting, below.leaveExisting)
	inherit(&s.kernelSockets, below.kernelSockets)
	inherit(&s.silent, below.silent)
	inherit(&s.silence, below.silence)
	inherit(&s.connect, below.connect)
	inherit(&s.inFlight, below.inFlight)
	return s
}

func inherit[T any](s *setting[T], below setting[T]) {
	if !s.given() {
		*s = setting[T]{value: below.value, bad: below.bad}
	}
}

func (s settings) options() conn.Options {
	return conn.Options{
		KeepAlive: true, Idle: s.idle.value, Interval: s.interval.value,
		Count: s.count.value, UserTimeout: s.userTimeout.value,
	}
}

// combinations refuses values that are right each alone but together let few
// lost packets, or too early a judgement, kill a healthy connection. It looks only at combinations of which at
// least one part is given here: inherited ones are reported where they stand.
func (d *decoder) combinations(s settings) {
	d.keepaliveFits(s)
	d.attemptsFit(s)
	d.silentFits(s)
	d.capFits(s)
}

// keepaliveFits: the user timeout overrides the keepalive count (kernel-facts
// T6), so that k lost probes are survived only above idle + k x interval (T7).
func (d *decoder) keepaliveFits(s settings) {
	if s.userTimeout.bad || s.idle.bad || s.interval.bad || s.count.bad {
		return
	}
	where, ok := firstGiven(s.userTimeout.at, s.count.at, s.interval.at, s.idle.at)
	need := s.room()
	if !ok || s.userTimeout.value >= need {
		return
	}
	remedy := "raise user_timeout to " + short(need) + " or shorten keepalive"
	switch {
	case need > maxUserTimeout:
		remedy = "shorten keepalive, user_timeout ends at " + limit(maxUserTimeout)
	case need > maxCapped && s.inFlight.value == ByRTOCap:
		remedy = "shorten keepalive, user_timeout ends at " + short(maxCapped) + " with in_flight rto_cap"
	}
	d.errorf(where, "user_timeout %s is below keepalive idle %s + count %d x interval %s = %s, so that few lost packets kill a healthy connection: %s",
		short(s.userTimeout.value), short(s.idle.value), s.count.value, short(s.interval.value), short(need), remedy)
}

// room is what the user timeout must have room for.
func (s *settings) room() time.Duration {
	return s.idle.value + time.Duration(s.count.value)*s.interval.value
}

// attemptsFit: a peer answers about one probe per 500 ms (kernel-facts P5).
func (d *decoder) attemptsFit(s settings) {
	if s.window.bad || s.attempts.bad {
		return
	}
	where, ok := firstGiven(s.window.at, s.attempts.at)
	need := time.Duration(s.attempts.value) * probeSpacing
	if !ok || s.window.value >= need {
		return
	}
	d.errorf(where, "probe window %s is below attempts %d x %s = %s, and a peer answers no faster: raise window to %[4]s or lower attempts to %[5]d",
		short(s.window.value), s.attempts.value, short(probeSpacing), short(need), s.window.value/probeSpacing)
}

// capFits: the kernel's retransmissions, and its keepalives without a user timeout, take
// no less and no more than that.
func (d *decoder) capFits(s settings) {
	if s.inFlight.bad || s.userTimeout.bad || s.inFlight.value != ByRTOCap {
		return
	}
	where, ok := firstGiven(s.inFlight.at, s.userTimeout.at, s.interval.at, s.idle.at)
	timeout, most := s.userTimeout.value, longestCapped(s.idle.value, s.interval.value)
	switch {
	case !ok:
	case timeout < minCapped:
		d.errorf(where, "in_flight rto_cap with user_timeout %s cannot be kept, the kernel's retransmissions take %s at least: "+
			"raise user_timeout to %[2]s, or write in_flight: user_timeout", short(timeout), short(minCapped))
	case s.idle.bad || s.interval.bad || timeout <= most:
	default:
		why := fmt.Sprintf("the kernel's retransmissions take %s at most", short(maxCapped))
		if most < maxCapped {
			why = fmt.Sprintf("the kernel counts %d keepalives at most then, which take %s", maxCount, short(most))
		}
		remedy := "write in_flight: user_timeout"
		if s.count.bad || s.room() <= most {
			remedy = "lower user_timeout to " + short(most) + ", or " + remedy
		}
		d.errorf(where, "in_flight rto_cap with user_timeout %s cannot be kept, %s: %s", short(timeout), why, remedy)
	}
}

// silentFits: what is closed although its path answers was asked first.
func (d *decoder) silentFits(s settings) {
	if s.silent.bad || s.window.bad {
		return
	}
	where, ok := firstGiven(s.silent.at, s.window.at)
	if !ok || s.silent.value == 0 || s.silent.value >= s.window.value {
		return
	}
	d.errorf(where, "close_silent_after %s is below probe window %s, so that it would judge before the probe is done: "+
		"raise close_silent_after to %[2]s or shorten the window", short(s.silent.value), short(s.window.value))
}

// firstGiven returns the first place that is not nowhere.
func firstGiven(places ...pos) (pos, bool) {
	for _, p := range places {
		if p != (pos{}) {
			return p, true
		}
	}
	return pos{}, false
}
