// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	judged "github.com/sockhealth/sockhealth/internal/agent"
	"github.com/sockhealth/sockhealth/internal/api"
	"github.com/sockhealth/sockhealth/internal/policy"
	"github.com/sockhealth/sockhealth/internal/verdict"
	"github.com/sockhealth/sockhealth/report"
)

const ms = time.Millisecond

// TestExcused: of timers that were late only those count that a close had to wait for.
func TestExcused(t *testing.T) {
	probe := policy.Probe{Window: 3 * time.Second, Attempts: 5} // one in 650 ms
	o := outcome{asked: time.Hour, at: time.Hour + 3*time.Second, lasted: 3*time.Second - 20*ms, probe: probe}
	many := func(from time.Duration) (all []lateTimer) {
		for i := range 20 {
			all = append(all, lateTimer{i % 2, time.Hour + from + time.Duration(i/2)*20*ms, 10 * ms})
		}
		return all
	}
	for _, test := range []struct {
		name string
		late []lateTimer
		want time.Duration
	}{
		{"none", nil, 0},
		{"many between two attempts", many(800 * ms), 0},
		{"many before the report", many(-time.Second), 0},
		{"many that wait for the last answer, on one processor", many(2700 * ms), 100 * ms},
		{"one while the report is on its way", []lateTimer{{0, time.Hour + 5*ms, 10 * ms}}, 10 * ms},
		{"one before that, and until it is", []lateTimer{{0, time.Hour - 100*ms, 110 * ms}}, 10 * ms},
		{"one for an attempt, most of which the next two make up for", []lateTimer{{0, time.Hour + 600*ms, 220 * ms}}, 75 * ms},
		{"one that is late beyond the close", []lateTimer{{1, time.Hour + 2950*ms, time.Second}}, 50 * ms},
		{"what a quiet machine does", []lateTimer{{0, time.Hour + 2900*ms, 4 * ms}}, 0},
	} {
		l := lateness{all: test.late}
		if got := l.excused(&o); got != test.want {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}

// TestBesides: what is waited for beside the window is granted where the record shows it,
// as far as it does, and no further than the scenario says.
func TestBesides(t *testing.T) {
	usual := policy.Probe{Window: 1500 * ms, Attempts: 3} // the last one at 1.1 s
	probes := func(last int64, more ...judged.Attempt) []judged.Attempt {
		return append([]judged.Attempt{{AtMS: 0, Kind: "segment"}, {AtMS: 550, Kind: "segment"}, {AtMS: last, Kind: "segment"}}, more...)
	}
	for _, test := range []struct {
		name   string
		at     time.Duration // since it was asked for
		lasted time.Duration
		most   time.Duration
		action string
		e      api.VerdictEvent
		want   []beside
	}{
		{"nothing", 1700 * ms, 1690 * ms, time.Minute, "closed", api.VerdictEvent{Probes: probes(1100)}, nil},
		{"the silence watch", 1700 * ms, 1500 * ms, 500 * ms, "closed", api.VerdictEvent{Reporter: "silence"}, []beside{{forPass, 200 * ms}}},
		{"the silence watch, which takes too long", 3 * time.Second, 1500 * ms, 500 * ms, "closed", api.VerdictEvent{Reporter: "silence"}, []beside{{forPass, 500 * ms}}},
		{"a turn", 6 * time.Second, 1500 * ms, 7 * time.Second, "deferred", api.VerdictEvent{}, []beside{{forTurn, 4500 * ms}}},
		{"the peer's limit", 1900 * ms, 1880 * ms, owing, "closed",
			api.VerdictEvent{Probes: probes(1400, judged.Attempt{AtMS: 890, Kind: "own_window_probe"})}, []beside{{forLimit, 300 * ms}}},
		{"the peer's limit, for too long", 4 * time.Second, 3900 * ms, 0, "closed",
			api.VerdictEvent{
				Probes: probes(3000, judged.Attempt{AtMS: 2500, Kind: "own_window_probe"}),
				Basis:  &verdict.Basis{Before: verdict.Sight{ProbesOut: 1}, After: &verdict.Sight{}},
			}, []beside{{forLimit, owing}}},
		{"the last attempt is late, and the peer owed an answer", 1900 * ms, 1880 * ms, owing, "closed",
			api.VerdictEvent{Probes: probes(1400, judged.Attempt{AtMS: 400, Kind: "own_window_probe"})}, nil},
		{"the last attempt is late, longer than the peer's limit", 1900 * ms, 1880 * ms, owing, "closed",
			api.VerdictEvent{Probes: probes(1400, judged.Attempt{AtMS: 690, Kind: "own_window_probe"})}, []beside{{forLimit, 100 * ms}}},
		{"a question of the kernel's own", 4500 * ms, 4410 * ms, 0, "closed",
			api.VerdictEvent{Probes: probes(1100, judged.Attempt{AtMS: 4000, Kind: "own_keepalive"})}, []beside{{forOwn, 2900 * ms}}},
		{"a question of the kernel's own that nobody waited for", 4500 * ms, 1500 * ms, 0, "closed",
			api.VerdictEvent{Probes: probes(1100, judged.Attempt{AtMS: 4000, Kind: "own_keepalive"})}, nil},
		{"the application", 2020 * ms, 2010 * ms, asking, "closed",
			api.VerdictEvent{Evidence: report.Evidence{AppProbe: "silent"}, Basis: &verdict.Basis{After: &verdict.Sight{PacketAgeNS: int64(2 * time.Second)}}}, []beside{{forApp, 510 * ms}}},
		{"the application, which takes too long", 5 * time.Second, 4990 * ms, asking, "closed",
			api.VerdictEvent{Evidence: report.Evidence{AppProbe: "silent"}, Basis: &verdict.Basis{After: &verdict.Sight{PacketAgeNS: int64(4980 * ms)}}}, []beside{{forApp, 510 * ms}}},
	} {
		p := &play{TB: t, asked: time.Hour}
		p.out = outcome{probe: usual, at: time.Hour + test.at, action: test.action}
		if test.e.Basis == nil {
			test.e.Basis = &verdict.Basis{After: &verdict.Sight{}}
		}
		test.e.Basis.After.TakenNS = int64(test.lasted)
		p.besides(&test.e, test.most)
		if diff := cmp.Diff(test.want, p.out.besides, cmp.AllowUnexported(beside{})); diff != "" {
			t.Errorf("%s: -want +got\n%s", test.name, diff)
		}
	}
}
