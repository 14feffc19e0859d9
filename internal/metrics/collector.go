// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sockhealth/sockhealth/internal/agent"
	"github.com/sockhealth/sockhealth/internal/api"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

const prefix = "sockhealth_"

// causes are the causes of a connection's end, by the kernel's counters.
func causes() []loader.Cause {
	return []loader.Cause{
		loader.CauseNormal, loader.CauseReset, loader.CauseIdle,
		loader.CauseInFlight, loader.CauseDestroyed, loader.CauseOther,
	}
}

// closeActions are what can be done about a condemned socket.
func closeActions() []agent.Action {
	return []agent.Action{agent.ActionClosed, agent.ActionObserved, agent.ActionDeferred, agent.ActionFrozen, agent.ActionFailed}
}

// collector reads everything at scrape.
type collector struct {
	Config
	stale, sockets, opened, closed   *prometheus.Desc
	bytesReceived, bytesAcked        *prometheus.Desc
	stalls, overrides                *prometheus.Desc
	verdicts, closes, live           *prometheus.Desc
	probes, judgements               *prometheus.Desc
	deferred, refused, frozen        *prometheus.Desc
	optionErrors, faults, eventsLost *prometheus.Desc
	connects                         *prometheus.Desc
	suspects, passes, passCPU        *prometheus.Desc
	unswept                          *prometheus.Desc
	logDropped                       *prometheus.Desc
	reports, conns, connsRefused     *prometheus.Desc
	reloadOK, reloadTime, unattended *prometheus.Desc
	coverage                         covered
	parts                            parts
	listening                        listening
}

func newCollector(c Config) *collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prefix+name, help, labels, nil)
	}
	return &collector{
		Config: c, coverage: newCovered(desc), parts: newParts(desc), listening: newListening(desc),
		stale: desc("stale_sockets_total", "Connections that were dead when they ended, by what found it out.",
			"policy", "cause"),
		sockets: desc("sockets", "Managed connections open now.", "policy"),
		opened: desc("connections_opened_total", "Managed connections opened.",
			"policy", "direction"),
		closed: desc("connections_closed_total", "Managed connections ended, by cause as the kernel saw it.",
			"policy", "cause"),
		bytesReceived: desc("bytes_received_total", "Payload received on managed connections, added when each ends.",
			"policy"),
		bytesAcked: desc("bytes_acked_total", "Payload sent and acknowledged on managed connections, added when each ends.",
			"policy"),
		stalls:   desc("stalls_total", "First retransmission timeouts of stalls on managed connections.", "policy"),
		connects: desc("connects_bounded_total", "Calls of connect() that connect_timeout ended.", "policy"),
		overrides: desc("app_overrides_total", "Socket options that applications set themselves on managed connections.",
			"policy", "outcome"),
		verdicts: desc("verdicts_total", "Judgements, by verdict; policy is empty where no entry names the connection.",
			"policy", "verdict"),
		closes: desc("closes_total", "Condemned sockets, by what was done.", "policy", "action"),
		live: desc("would_have_closed_live_total",
			"Sockets condemned under action: observe that got payload later.", "policy"),
		suspects: desc("silence_suspects_total", "Connections that the silence watch had judged.", "policy"),
		unswept:  desc("sweeps_failed_total", "Sweeps that could not look for the siblings of a silent socket."),
		passes:   desc("silence_passes_total", "Passes of the silence watch over the managed connections."),
		passCPU:  desc("silence_cpu_seconds_total", "CPU that the passes of the silence watch took."),
		probes:   desc("probes_total", "Attempts of the in-path probe, by what became of them.", "kind", "result"),
		judgements: desc("judgements_in_progress",
			"Sockets under judgement now."),
		deferred: desc("closes_deferred", "Condemned sockets that wait for the budget, or are judged again."),
		refused:  desc("deferrals_refused_total", "Condemned sockets that found too many waiting for the budget."),
		frozen:   desc("closing_frozen", "1 where nothing is closed by judgement, because this node itself seems to be cut off."),
		optionErrors: desc("setsockopt_errors_total", "Socket options that the kernel refused to the BPF programs.",
			"option"),
		faults:       desc("program_faults_total", "Steps that failed inside the BPF programs.", "reason"),
		eventsLost:   desc("events_dropped_total", "Events of the BPF programs that found their buffer full."),
		logDropped:   desc("log_lines_dropped_total", "Lines of the log that were dropped because stderr did not take them."),
		reports:      desc("reports_total", "Answers on report.sock, by HTTP status.", "code"),
		conns:        desc("report_connections", "Connections to report.sock that are open now."),
		connsRefused: desc("report_connections_refused_total", "Connections to report.sock that were over its limits."),
		reloadOK: desc("policy_last_reload_success",
			"1 where the policy file was taken when it was last read, 0 where it was refused."),
		reloadTime: desc("policy_last_reload_timestamp_seconds", "When the policy file was last taken."),
		unattended: desc("policy_unattended_seconds",
			"How long, before this agent started, a policy was in force with no agent running."),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.stale, c.sockets, c.opened, c.closed, c.bytesReceived, c.bytesAcked, c.stalls, c.connects, c.overrides,
		c.verdicts, c.closes, c.live, c.probes, c.judgements,
		c.deferred, c.refused, c.unswept, c.frozen, c.optionErrors, c.faults, c.eventsLost,
		c.reloadOK, c.reloadTime, c.unattended, c.suspects, c.passes, c.passCPU, c.logDropped,
		c.reports, c.conns, c.connsRefused,
	} {
		ch <- d
	}
	c.coverage.describe(ch)
	c.parts.describe(ch)
	c.listening.describe(ch)
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	s := sink(ch)
	stats := c.Agent.Stats()
	counters, err := c.Kernel.Counters()
	if err != nil {
		s.invalid(c.sockets, err)
	}
	report, canary := c.Coverage.Coverage()
	adoption, guarded := c.Coverage.Adoption(), c.Coverage.Guarded()
	for name, k := range counters {
		c.policy(s, name, &k, &stats)
		c.coverage.policy(s, name, &k, &report, adoption)
		s.gauge(c.coverage.guarded, float64(guarded[name]), name)
	}
	c.coverage.checks(s, &report, &canary)
	c.parts.collect(s, c.Health.Parts())
	c.judged(s, "", &stats)
	c.probing(s, &stats)
	c.programs(s)
	c.listening.collect(s, c.API.Endpoints())
	watch := c.Silence.Silence()
	s.counter(c.passes, watch.Passes)
	s <- prometheus.MustNewConstMetric(c.passCPU, prometheus.CounterValue, watch.CPU.Seconds())
	c.reported(s)
	s.counter(c.logDropped, c.Log.LogDropped())
	ok, loaded := c.Policy.LastReload()
	s.gauge(c.reloadOK, boolean(ok))
	s.gauge(c.reloadTime, float64(loaded.UnixMilli())/1e3)
	s.gauge(c.unattended, c.Kernel.Unattended().Seconds())
}

// policy sends the series of one policy.
func (c *collector) policy(s sink, name string, k *loader.Counters, stats *agent.Stats) {
	s.gauge(c.sockets, float64(k.Open()), name)
	s.counter(c.opened, k.OpenedOutbound, name, "outbound")
	s.counter(c.opened, k.OpenedInbound, name, "inbound")
	for _, cause := range causes() {
		s.counter(c.closed, k.Closed[cause], name, cause.String())
	}
	s.counter(c.bytesReceived, k.BytesReceived, name)
	s.counter(c.bytesAcked, k.BytesAcked, name)
	s.counter(c.stalls, k.Stalls, name)
	s.counter(c.connects, k.ConnectsBounded, name)
	s.counter(c.overrides, k.OverrideKept, name, "kept")
	s.counter(c.overrides, k.OverrideHeld, name, "held")
	s.counter(c.overrides, k.OverrideAllowed, name, "allowed")
	s.counter(c.overrides, k.OverrideRaised, name, "raised")

	c.judged(s, name, stats)
	for _, action := range closeActions() {
		n := uint64(0)
		for _, cause := range agent.Causes() {
			n += stats.Closes[agent.CloseKey{Policy: name, Cause: cause, Action: action}]
		}
		s.counter(c.closes, n, name, string(action))
	}
	for _, cause := range []loader.Cause{loader.CauseIdle, loader.CauseInFlight} {
		s.counter(c.stale, k.Closed[cause], name, cause.String())
	}
	// The kernel counts these as destroyed, whoever did it.
	for _, cause := range agent.Causes() {
		closed := stats.Closes[agent.CloseKey{Policy: name, Cause: cause, Action: agent.ActionClosed}]
		s.counter(c.stale, closed, name, cause)
	}
	s.counter(c.live, stats.WouldHaveClosed[name], name)
	s.counter(c.suspects, stats.Suspects[name], name)
}

// judged sends the verdicts of one policy.
func (c *collector) judged(s sink, policy string, stats *agent.Stats) {
	for _, word := range verdict.Words() {
		s.counter(c.verdicts, stats.Verdicts[agent.VerdictKey{Policy: policy, Verdict: word}], policy, string(word))
	}
}

// reported sends what became of reports, whether they were judged or not.
func (c *collector) reported(s sink) {
	stats := c.Reports.Reports()
	for _, code := range api.Codes() {
		s.counter(c.reports, stats.Answers[code], strconv.Itoa(code))
	}
	s.counter(c.reports, stats.Answers[api.OtherCode], "other")
	s.gauge(c.conns, float64(stats.Open))
	s.counter(c.connsRefused, stats.Refused)
}

func (c *collector) probing(s sink, stats *agent.Stats) {
	for _, kind := range agent.ProbeKinds() {
		for _, result := range agent.ProbeResults() {
			s.counter(c.probes, stats.Probes[agent.ProbeKey{Kind: kind, Result: result}], kind, result)
		}
	}
	s.gauge(c.judgements, float64(stats.Judgements))
	s.gauge(c.deferred, float64(stats.Deferred))
	s.counter(c.refused, stats.DeferralsRefused)
	s.counter(c.unswept, stats.SweepsFailed)
	s.gauge(c.frozen, boolean(!stats.Frozen.IsZero()))
}

// programs sends what went wrong inside the programs.
func (c *collector) programs(s sink) {
	faults, err := c.Kernel.Faults()
	if err != nil {
		s.invalid(c.faults, err)
	}
	for i, n := range faults {
		f := loader.Fault(i)
		switch {
		case f == loader.FaultEventLost:
			s.counter(c.eventsLost, n)
		case f.Option() != "":
			s.counter(c.optionErrors, n, f.Option())
		default:
			s.counter(c.faults, n, f.String())
		}
	}
}

// sink takes metrics.
type sink chan<- prometheus.Metric

func (s sink) counter(d *prometheus.Desc, n uint64, labels ...string) {
	s <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
}

func (s sink) gauge(d *prometheus.Desc, v float64, labels ...string) {
	s <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

// invalid makes the scrape fail with err.
func (s sink) invalid(d *prometheus.Desc, err error) { s <- prometheus.NewInvalidMetric(d, err) }

func boolean(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
