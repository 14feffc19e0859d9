// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
)

const ms = time.Millisecond

func figures(userTimeout, idle, interval time.Duration) Figures {
	p := Peer{
		Options: conn.Options{KeepAlive: true, UserTimeout: userTimeout, Idle: idle, Interval: interval, Count: 1},
		Probe:   Probe{Window: 3 * time.Second, Attempts: 5},
	}
	return p.Figures()
}

// What was measured on a kernel: T2, T2b, T3, T6, T8 of the kernel facts.
func TestFiguresMeasured(t *testing.T) {
	s := time.Second
	for _, tt := range []struct {
		name                        string
		userTimeout, idle, interval time.Duration
		idleBound                   time.Duration // the measured one, less its lateness
		lost                        int
		near                        time.Duration
	}{
		{"T2b, the defaults", 15 * s, 5 * s, 2 * s, 15 * s, 4, 12600 * ms},
		{"T2", 15 * s, 5 * s, 5 * s, 15 * s, 1, 12600 * ms},
		{"T6", 20 * s, 5 * s, 2 * s, 21 * s, 6, 12600 * ms},
		{"T6, tight", 3 * s, 2 * s, 2 * s, 4 * s, 0, 1400 * ms},
		{"T7, one probe kills", 20 * s, 15 * s, 15 * s, 30 * s, 0, 12600 * ms},
		{"the second probe due with the user timeout", 9 * s, 4 * s, 4 * s, 12 * s, 0, 6200 * ms},
		{"the second probe due just before", 9*s + ms, 4 * s, 4 * s, 12 * s, 1, 6200 * ms},
		{"the first probe due late", 100 * s, 99 * s, 1 * s, 100 * s, 0, 51 * s},
		{"T8, 10 s", 10 * s, 5 * s, 1 * s, 10 * s, 3, 6200 * ms},
		{"T8, 30 s", 30 * s, 5 * s, 5 * s, 30 * s, 4, 25400 * ms},
	} {
		f := figures(tt.userTimeout, tt.idle, tt.interval)
		if f.IdleBound != tt.idleBound || f.LostProbes != tt.lost || f.SurvivesInFlightNear != tt.near {
			t.Errorf("%s: idle bound %s, lost probes %d, in flight %s; want %s, %d, %s", tt.name,
				f.IdleBound, f.LostProbes, f.SurvivesInFlightNear, tt.idleBound, tt.lost, tt.near)
		}
		if f.InFlightBound != tt.userTimeout+200*ms {
			t.Errorf("%s: in-flight bound %s", tt.name, f.InFlightBound)
		}
	}
	f := figures(15*s, 5*s, 2*s)
	want := Figures{
		IdleBound: 15 * s, IdleBoundLatest: 16875 * ms,
		InFlightBound: 15200 * ms, InFlightBoundLatest: 17325 * ms,
		LostProbes: 4, SurvivesIdle: 8 * s, SurvivesIdleFresh: 13 * s,
		SurvivesInFlight: 15 * s * 4 / 9, SurvivesInFlightNear: 12600 * ms,
		ReportBound: 3 * s, SurvivesReport: 2600 * ms,
	}
	if f != want {
		t.Errorf("the defaults:\n%+v, want\n%+v", f, want)
	}
}

// kernel plays the kernel's timers, which fire late by a random part of an
// eighth, or on time.
type kernel struct {
	*rand.Rand
	late bool
}

func (k kernel) timer(d time.Duration) time.Duration {
	if !k.late {
		return d
	}
	return d + time.Duration(k.Int64N(int64(d)/8+1))
}

// idle plays tcp_keepalive_timer from the last packet on, with the path down
// from begin to end; end 0 is never. It returns when the connection died, or 0.
func (k kernel) idle(userTimeout, idle, interval, begin, end time.Duration) time.Duration {
	now, unanswered := k.timer(idle), 0
	for {
		if unanswered > 0 && now >= userTimeout {
			return now
		}
		if end != 0 && now >= end {
			return 0
		}
		if now < begin { // answered: the outage begins after a fresh packet
			begin, end = begin-now, end-now
			now = k.timer(idle)
			continue
		}
		unanswered++
		now += k.timer(interval)
	}
}

// inFlight plays tcp_retransmit_timer from a send on, with the path down until
// end; end 0 is never. A tail loss probe may come first.
func (k kernel) inFlight(userTimeout, rto, end time.Duration) time.Duration {
	var now, first time.Duration
	if k.late && k.IntN(2) == 0 {
		now = k.timer(rto)
		if end != 0 && now >= end {
			return 0
		}
	}
	for wait := rto; ; {
		now += k.timer(wait)
		if first > 0 && now-first >= userTimeout {
			return now
		}
		if end != 0 && now >= end {
			return 0
		}
		if first == 0 {
			first = now
		}
		rto = min(2*rto, 120*time.Second)
		wait = max(min(rto, userTimeout-(now-first)), ms)
	}
}

// The figures hold on a played kernel for random values, random outages and
// timers on time and late.
func TestFiguresPlayed(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	upTo := func(d time.Duration) time.Duration { return time.Duration(r.Int64N(int64(d))) }
	for range 20000 {
		idle := time.Duration(1+r.IntN(30)) * time.Second
		interval := time.Duration(1+r.IntN(10)) * time.Second
		userTimeout := idle + time.Duration(1+r.IntN(10))*interval + upTo(20*time.Second).Truncate(ms)
		f := figures(userTimeout, idle, interval)
		k := kernel{Rand: r, late: r.IntN(2) == 0}

		died := k.idle(userTimeout, idle, interval, 0, 0)
		// A late firing may be the one that finds the user timeout passed.
		if died < userTimeout || died > f.IdleBoundLatest || !k.late && died != f.IdleBound {
			t.Fatalf("%s %s %s late=%t: idle end at %s, figures %+v", userTimeout, idle, interval, k.late, died, f)
		}
		died = k.inFlight(userTimeout, rtoMin, 0)
		if died < f.InFlightBound || died > f.InFlightBoundLatest || !k.late && died != f.InFlightBound {
			t.Fatalf("%s late=%t: in-flight end at %s, figures %+v", userTimeout, k.late, died, f)
		}
		if f.LostProbes > 0 {
			begin := upTo(3 * idle)
			end := begin + upTo(f.SurvivesIdle)
			if died := k.idle(userTimeout, idle, interval, begin, end); died != 0 {
				t.Fatalf("%s %s %s: an outage from %s to %s killed at %s, figures %+v", userTimeout, idle, interval, begin, end, died, f)
			}
		}
		end := upTo(f.SurvivesIdleFresh)
		if died := k.idle(userTimeout, idle, interval, 0, end); died != 0 {
			t.Fatalf("%s %s %s: an outage of %s killed at %s, figures %+v", userTimeout, idle, interval, end, died, f)
		}
		rto := rtoMin + upTo(5*time.Second)
		if died := k.inFlight(userTimeout, rto, upTo(f.SurvivesInFlight)); died != 0 {
			t.Fatalf("%s rto %s: an outage in flight killed at %s, figures %+v", userTimeout, rto, died, f)
		}
		if died := k.inFlight(userTimeout, rtoMin, upTo(f.SurvivesInFlightNear)); died != 0 {
			t.Fatalf("%s: an outage in flight killed at %s, figures %+v", userTimeout, died, f)
		}
	}
}

// The figures are no less than they could be: a bit more than what is survived
// for sure kills with some timers.
func TestFiguresTight(t *testing.T) {
	k := kernel{}
	s := time.Second
	if k.idle(15*s, 5*s, 2*s, 5*s-1, 5*s+9*s) == 0 {
		t.Error("the defaults survive an outage of 9 s that begins before the first probe")
	}
	if k.idle(15*s, 5*s, 2*s, 0, 13*s+1) == 0 {
		t.Error("the defaults survive an outage of more than 13 s")
	}
	if k.inFlight(15*s, rtoMin, 12600*ms+1) == 0 {
		t.Error("the defaults survive an outage of more than 12.6 s in flight")
	}
}

// TestHasty: a silence that ends before a keepalive is due is named.
func TestHasty(t *testing.T) {
	p, err := Parse("policy.yaml", []byte(`version: 1
defaults: {user_timeout: 60s, keepalive: {idle: 8s, interval: 5s}}
peers:
  - {name: none, cidrs: [10.0.0.0/24]}
  - {name: due, cidrs: [10.0.1.0/24], silence: 10s}
  - {name: before, cidrs: [10.0.2.0/24], silence: 9900ms}
`))
	if err != nil {
		t.Fatal(err)
	}
	want := `policy.yaml:6:51: warning: silence 9.9s of "before" ends before a keepalive is due after 10s (idle 8s x 9/8 + 1s), ` +
		"so that connections that are idle and well may be probed for it: raise silence to 10s or shorten keepalive"
	if got := p.Warnings(Ground{}); len(got) != 1 || got[0].Error() != want {
		t.Errorf("got %v, want %s", got, want)
	}
}

// TestWarnings: those of the file in its order, those of an old kernel among them, and
// what is inherited with the place of the entry.
func TestWarnings(t *testing.T) {
	p, err := Parse("policy.yaml", []byte(`version: 1
defaults: {silence: 2s}
peers:
  - {name: capped, cidrs: [10.0.0.0/24], in_flight: rto_cap, silence: off}
  - {name: hasty, cidrs: [10.0.1.0/24]}
`))
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		on   Ground
		want []string
	}{
		{Ground{RTOCap: true}, []string{`policy.yaml:5:5: warning: silence 2s of "hasty" `}},
		{Ground{}, []string{`policy.yaml:4:53: warning: in_flight rto_cap of "capped" needs Linux 6.15, on this machine user_timeout 15s `, `policy.yaml:5:5: `}},
	} {
		got := p.Warnings(tc.on)
		if len(got) != len(tc.want) {
			t.Fatalf("%+v: got %v", tc.on, got)
		}
		for i, want := range tc.want {
			if !strings.HasPrefix(got[i].Error(), want) {
				t.Errorf("%+v: %v, want %s", tc.on, got[i], want)
			}
		}
	}
}
