// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/sockhealth/sockhealth/internal/adopt"
	"github.com/sockhealth/sockhealth/internal/agent"
	"github.com/sockhealth/sockhealth/internal/api"
	"github.com/sockhealth/sockhealth/internal/coverage"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/silence"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is an agent, a kernel and a policy file.
type fake struct {
	stats    agent.Stats
	counters map[string]loader.Counters
	faults   []uint64
	// Where set, reading these fails.
	countersErr, faultsErr error
	reloadOK               bool
	unattended             time.Duration
	report                 coverage.Report
	canary                 coverage.Canary
	adoption               map[string]adopt.Count
	watch                  silence.Stats
	guarded                map[string]uint64
	parts                  Parts
	ends                   []Endpoint
	logDropped             uint64
	reports                api.Stats
}

func (f *fake) Stats() agent.Stats                            { return f.stats }
func (f *fake) Counters() (map[string]loader.Counters, error) { return f.counters, f.countersErr }
func (f *fake) Faults() ([]uint64, error)                     { return f.faults, f.faultsErr }
func (f *fake) Reports() api.Stats                            { return f.reports }
func (f *fake) LogDropped() uint64                            { return f.logDropped }
func (f *fake) Unattended() time.Duration                     { return f.unattended }
func (f *fake) Adoption() map[string]adopt.Count              { return f.adoption }
func (f *fake) Silence() silence.Stats                        { return f.watch }
func (f *fake) Guarded() map[string]uint64                    { return f.guarded }
func (f *fake) Endpoints() []Endpoint                         { return f.ends }
func (f *fake) Coverage() (coverage.Report, coverage.Canary)  { return f.report, f.canary }
func (f *fake) Parts() Parts                                  { return f.parts }
func (f *fake) LastReload() (bool, time.Time)                 { return f.reloadOK, time.UnixMilli(1767323045500) }

func (f *fake) metrics() *Metrics {
	return New(Config{Agent: f, Kernel: f, Policy: f, Coverage: f, Silence: f, Health: f, API: f, Log: f, Reports: f, Version: "0.1.0", Revision: "abc"})
}

// fresh is an agent that has just started, with one policy.
func fresh() *fake {
	n := 0
	for !strings.HasPrefix(loader.Fault(n).String(), "fault_") {
		n++
	}
	return &fake{
		counters: map[string]loader.Counters{"buffer": {}}, faults: make([]uint64, n), reloadOK: true,
		parts: Parts{Attached: true}, ends: []Endpoint{{Socket: "admin.sock"}, {Socket: "report.sock"}},
	}
}

func TestLint(t *testing.T) {
	problems, err := testutil.GatherAndLint(fresh().metrics().registry)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// Every series is there from the start, at 0.
func TestFresh(t *testing.T) {
	gathered(t, fresh().metrics(), freshMetrics)
}

// Every figure stands where it belongs.
func TestFigures(t *testing.T) {
	f := fresh()
	f.reloadOK = false
	f.unattended = 81500 * time.Millisecond
	k := loader.Counters{
		OpenedOutbound: 1000, OpenedInbound: 200, BytesReceived: 7, BytesAcked: 8, Stalls: 9,
		OverrideKept: 10, OverrideHeld: 11, OverrideRaised: 12, OverrideAllowed: 13,
	}
	for i, c := range causes() {
		k.Closed[c] = uint64(i + 1)
	}
	f.counters["buffer"] = k
	for i := range f.faults {
		f.faults[i] = uint64(100 + i)
	}
	f.guarded = map[string]uint64{"buffer": 81, "a policy that is gone": 82}
	f.stats = agent.Stats{
		Verdicts: map[agent.VerdictKey]uint64{
			{Policy: "buffer", Verdict: verdict.DeadPath}: 31, {Verdict: verdict.Unmanaged}: 32,
			{Policy: "a policy that is gone", Verdict: verdict.Alive}: 33,
		},
		Closes: map[agent.CloseKey]uint64{
			{Policy: "buffer", Cause: agent.CauseDeadPath, Action: agent.ActionClosed}:            41,
			{Policy: "buffer", Cause: agent.CauseDeadPath, Action: agent.ActionFailed}:            42,
			{Policy: "buffer", Cause: agent.CauseDeadPath, Action: agent.ActionObserved}:          43,
			{Policy: "buffer", Cause: agent.CauseDeadPath, Action: agent.ActionDeferred}:          45,
			{Policy: "buffer", Cause: agent.CauseDeadPath, Action: agent.ActionFrozen}:            46,
			{Policy: "buffer", Cause: agent.CauseHung, Action: agent.ActionClosed}:                1000,
			{Policy: "buffer", Cause: agent.CauseHung, Action: agent.ActionObserved}:              2000,
			{Policy: "buffer", Cause: agent.CauseSilentLimit, Action: agent.ActionClosed}:         10_000,
			{Policy: "a policy that is gone", Cause: agent.CauseHung, Action: agent.ActionClosed}: 44,
		},
		WouldHaveClosed: map[string]uint64{"buffer": 71, "a policy that is gone": 72},
		Probes:          map[agent.ProbeKey]uint64{{Kind: "segment", Result: "no_route"}: 51},
		Suspects:        map[string]uint64{"buffer": 81, "a policy that is gone": 82},
		Judgements:      61, Deferred: 62, DeferralsRefused: 63, SweepsFailed: 64, Frozen: time.Now(),
	}
	f.ends[0].Reached, f.ends[1].Remade = true, 85
	f.logDropped = 85
	f.reports = api.Stats{Answers: map[int]uint64{200: 86, 429: 87, api.OtherCode: 88}, Open: 89, Refused: 90}
	f.watch = silence.Stats{Passes: 83, CPU: 84 * time.Millisecond}
	m := f.metrics()
	m.ObserveVerdict(3 * time.Second)
	_, body := scrape(t, m)
	if d := diff(strings.TrimPrefix(figures, "\n"), nonzero(body)); d != "" {
		t.Errorf("series other than 0 (-want +got):\n%s", d)
	}
	for _, line := range []string{
		`sockhealth_verdict_duration_seconds_bucket{le="2"} 0`, `sockhealth_verdict_duration_seconds_bucket{le="3"} 1`,
		`sockhealth_verdict_duration_seconds_sum 3`,
	} {
		if !strings.Contains(body, line+"\n") {
			t.Errorf("not there: %s", line)
		}
	}
}

// nonzero are the lines of what was scraped whose figure is not 0, but for those that
// vary.
func nonzero(body string) string {
	var got []string
	for line := range strings.Lines(body) {
		if strings.HasPrefix(line, prefix) && !strings.HasSuffix(line, " 0\n") &&
			!strings.Contains(line, "_info") && !strings.Contains(line, "_duration_") {
			got = append(got, line)
		}
	}
	return strings.Join(got, "")
}
