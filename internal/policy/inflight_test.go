// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
)

// capped is a peer with in_flight: rto_cap.
func capped(userTimeout, idle, interval time.Duration, count int) *Peer {
	return &Peer{
		InFlight: ByRTOCap,
		Options:  conn.Options{KeepAlive: true, UserTimeout: userTimeout, Idle: idle, Interval: interval, Count: count},
		Probe:    Probe{Window: 3 * time.Second, Attempts: 5},
	}
}

// What the kernel reckons (tcp_model_timeout): with 15 retransmissions a second apart
// at most it is 14.4 s, with its defaults 924.6 s (kernel-facts T1, T12).
func TestRetransmitting(t *testing.T) {
	for _, tt := range []struct {
		retries int
		limit   time.Duration
		want    time.Duration
	}{
		{15, time.Second, 14400 * ms},
		{15, 2 * time.Minute, 924600 * ms},
		{2, time.Second, 1400 * ms},
		{8, time.Second, 7400 * ms},
		{0, time.Second, 200 * ms},
	} {
		if got := retransmitting(tt.retries, tt.limit); got != tt.want {
			t.Errorf("%d retransmissions at most %s apart take %s, want %s", tt.retries, tt.limit, got, tt.want)
		}
	}
}

// The limit is the largest that keeps the user timeout, and within the kernel's range
// and the programs'.
func TestRTOMax(t *testing.T) {
	for userTimeout, want := range map[time.Duration]time.Duration{
		15 * time.Second: time.Second, 16 * time.Second: 1100 * ms, time.Hour: maxCap,
	} {
		if got := rtoMax(userTimeout); got != want {
			t.Errorf("limit %s for %s, want %s", got, userTimeout, want)
		}
	}
	for s := 15; s < 400; s++ {
		userTimeout := time.Duration(s) * time.Second
		limit := rtoMax(userTimeout)
		if limit < time.Second || limit > maxCap || retransmitting(15, limit) > userTimeout {
			t.Errorf("limit %s for %s: %s", limit, userTimeout, retransmitting(15, limit))
		}
		if next := limit + capStep; next <= maxCap && retransmitting(15, next) <= userTimeout {
			t.Errorf("limit %s for %s, %s would do", limit, userTimeout, next)
		}
	}
}

func TestWanted(t *testing.T) {
	p := capped(time.Minute, 5*time.Second, 2*time.Second, 5)
	if o := p.Wanted(true); o.RTOMax != 4800*ms || o.Count != 27 || o.UserTimeout != time.Minute {
		t.Errorf("wanted %+v", o)
	}
	for _, o := range []conn.Options{
		p.Wanted(false),
		(&Peer{Options: p.Options}).Wanted(true),
		(&Peer{Options: p.Options, InFlight: Auto}).Wanted(false),
	} {
		if o != p.Options {
			t.Errorf("wanted %+v, want %+v", o, p.Options)
		}
	}
	p.InFlight, p.Options.UserTimeout = Auto, 15*time.Second
	if o := p.Wanted(true); o.RTOMax != time.Second || o.Count != 5 {
		t.Errorf("auto: wanted %+v", o)
	}
	p.Options.UserTimeout = 14 * time.Second
	if o := p.Wanted(true); o != p.Options {
		t.Errorf("auto with a user timeout that is too short: wanted %+v", o)
	}
}

// retransmit plays tcp_retransmit_timer without a user timeout, from a send on, with
// the path down until end; end 0 is never.
func (k kernel) retransmit(givesUp, limit, rto, end time.Duration) time.Duration {
	var now, first time.Duration
	if k.late && k.IntN(2) == 0 { // a tail loss probe
		now = k.timer(rto)
		if end != 0 && now >= end {
			return 0
		}
	}
	rto = min(rto, limit)
	for {
		now += k.timer(rto)
		if first > 0 && now-first >= givesUp {
			return now
		}
		if end != 0 && now >= end {
			return 0
		}
		if first == 0 {
			first = now
		}
		rto = min(2*rto, limit)
	}
}

// keepalives plays tcp_keepalive_timer without a user timeout, as kernel.idle does with.
func (k kernel) keepalives(count int, idle, interval, begin, end time.Duration) time.Duration {
	now, unanswered := k.timer(idle), 0
	for {
		if unanswered >= count {
			return now
		}
		if end != 0 && now >= end {
			return 0
		}
		if now < begin {
			begin, end = begin-now, end-now
			now = k.timer(idle)
			continue
		}
		unanswered++
		now += k.timer(interval)
	}
}

// The figures of rto_cap hold on a played kernel for random values, random outages and
// timers on time and late.
func TestFiguresCapped(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	upTo := func(d time.Duration) time.Duration { return time.Duration(r.Int64N(int64(d))) }
	for range 20000 {
		idle := time.Duration(1+r.IntN(10)) * time.Second
		interval := time.Duration(1+r.IntN(3)) * time.Second
		p := capped(15*time.Second+upTo(longestCapped(idle, interval)-15*time.Second).Truncate(ms), idle, interval, 1)
		g := Ground{RTOCap: true, Retries2: 3 + r.IntN(20)}
		f, o := p.FiguresOn(g), p.Wanted(true)
		givesUp := retransmitting(g.Retries2, o.RTOMax)
		k := kernel{Rand: r, late: r.IntN(2) == 0}

		died := k.retransmit(givesUp, o.RTOMax, rtoMin, 0)
		if died < givesUp || died > f.InFlightBoundLatest || !k.late && died != f.InFlightBound {
			t.Fatalf("%+v %+v late=%t: in-flight end at %s, figures %+v", o, g, k.late, died, f)
		}
		rto := rtoMin + upTo(5*time.Second)
		if f.SurvivesInFlight > 0 {
			if died := k.retransmit(givesUp, o.RTOMax, rto, 1+upTo(f.SurvivesInFlight)); died != 0 {
				t.Fatalf("%+v %+v rto %s: an outage in flight killed at %s, figures %+v", o, g, rto, died, f)
			}
		}
		if died := k.retransmit(givesUp, o.RTOMax, rtoMin, 1+upTo(f.SurvivesInFlightNear)); died != 0 {
			t.Fatalf("%+v %+v: an outage in flight killed at %s, figures %+v", o, g, died, f)
		}
		died = k.keepalives(o.Count, idle, interval, 0, 0)
		if died > f.IdleBoundLatest || !k.late && died != f.IdleBound || died > late(p.Options.UserTimeout) {
			t.Fatalf("%+v late=%t: idle end at %s, figures %+v", o, k.late, died, f)
		}
		begin := upTo(3 * idle)
		if died := k.keepalives(o.Count, idle, interval, begin, begin+upTo(f.SurvivesIdle+1)); died != 0 {
			t.Fatalf("%+v: an outage from %s killed at %s, figures %+v", o, begin, died, f)
		}
		if died := k.keepalives(o.Count, idle, interval, 0, 1+upTo(f.SurvivesIdleFresh)); died != 0 {
			t.Fatalf("%+v: an outage killed at %s, figures %+v", o, died, f)
		}
	}
}

// An explanation says what bounds data in flight, and what that stands on.
func TestExplainInFlight(t *testing.T) {
	for _, tt := range []struct {
		lines string
		on    Ground
		want  string // "" is no line
	}{
		{"", Ground{RTOCap: true}, ""},
		{"in_flight: rto_cap", Ground{RTOCap: true}, "rto_cap: 15 retransmissions (net.ipv4.tcp_retries2, assumed), at most 1 s apart"},
		{"in_flight: auto", Ground{RTOCap: true, Retries2: 8}, "auto: 8 retransmissions (net.ipv4.tcp_retries2, of this network namespace), at most 1 s apart"},
		{"in_flight: rto_cap", Ground{}, "rto_cap: user_timeout, since this kernel has no TCP_RTO_MAX_MS (Linux 6.15)"},
		{"in_flight: auto, user_timeout: 12s, keepalive: {count: 3}", Ground{RTOCap: true}, "auto: user_timeout, since rto_cap needs one of 15s or more"},
	} {
		p, err := Parse("p.yaml", []byte("version: 1\npeers: [{name: a, cidrs: [10.0.0.0/8], "+tt.lines+"}]\n"))
		if err != nil {
			t.Fatal(err)
		}
		x := p.ExplainOn(tt.on, netip.MustParseAddrPort("10.0.0.1:80"), conn.Outbound)
		got := ""
		for line := range strings.Lines(x.String()) {
			if rest, ok := strings.CutPrefix(line, "  in flight "); ok {
				got = strings.TrimSpace(rest)
			}
		}
		if got != tt.want {
			t.Errorf("%s on %+v: %q, want %q", tt.lines, tt.on, got, tt.want)
		}
		bound := x.Answers[0].Figures.InFlightBound
		if want := x.Answers[0].Peer.FiguresOn(tt.on).InFlightBound; bound != want {
			t.Errorf("%s: bound %s, want %s", tt.lines, bound, want)
		}
	}
}
