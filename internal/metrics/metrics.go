// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"net/http"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/sockhealth/sockhealth/internal/agent"
	"github.com/sockhealth/sockhealth/internal/api"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/silence"
)

// Agent has the figures of the agent itself.
type Agent interface {
	Stats() agent.Stats
}

// Kernel has the counters of the BPF programs.
type Kernel interface {
	// Counters returns those of each policy in force, by name.
	Counters() (map[string]loader.Counters, error)
	// Faults returns the faults of the programs, indexed by loader.Fault.
	Faults() ([]uint64, error)
	// Unattended returns for how long, before this agent, connections were
	// bounded with no agent running.
	Unattended() time.Duration
}

// Policy says how it stands with the policy file.
type Policy interface {
	// LastReload returns whether the file was taken when it was last read,
	// and when the policy in force was loaded.
	LastReload() (ok bool, loaded time.Time)
}

// Silence has the figures of the silence watch.
type Silence interface {
	Silence() silence.Stats
}

// Log says how it stands with the log.
type Log interface {
	// LogDropped returns how many lines were dropped.
	LogDropped() uint64
}

// Reports says what became of the requests to report.sock.
type Reports interface {
	Reports() api.Stats
}

// Config is what New needs.
type Config struct {
	Agent    Agent
	Kernel   Kernel
	Policy   Policy
	Coverage Coverage
	Silence  Silence
	Health   Health
	API      API
	Log      Log
	Reports  Reports
	// Version and Revision are those of the build; "" where not stamped.
	Version, Revision string
}

// Metrics is a registry of the agent's metrics and of the Go runtime's and the
// process's. Use New.
type Metrics struct {
	registry *prometheus.Registry
	verdicts prometheus.Histogram
}

// verdictBuckets are the bounds of the histogram of verdicts, in seconds: from a look alone
// to the longest windows (1 m, begun up to 3 times) and application probe (1 m) that a
// policy may have. Most verdicts that close take the default window and some milliseconds:
// the bounds are close there.
func verdictBuckets() []float64 {
	return []float64{
		.0001, .0005, .001, .005, .01, .05, .1, .5, 1, 2,
		3, 3.05, 3.1, 3.25, 3.5, 4, 5, 7, 10, 15, 30, 60, 120, 240,
	}
}

// New registers everything. Nothing is read before the first scrape.
func New(c Config) *Metrics {
	m := &Metrics{
		registry: prometheus.NewPedanticRegistry(),
		verdicts: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    prefix + "verdict_duration_seconds",
			Help:    "Time from a report, or the start of a judgement by sweep or silence watch, to its verdict.",
			Buckets: verdictBuckets(),
		}),
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: prefix + "build_info",
		Help: "Always 1; the labels say which build runs.",
		ConstLabels: prometheus.Labels{
			"version": c.Version, "revision": c.Revision, "goversion": runtime.Version(),
		},
	})
	build.Set(1)
	m.registry.MustRegister(
		newCollector(c), m.verdicts, build,
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return m
}

// ObserveVerdict records how long a verdict took; it does not block.
func (m *Metrics) ObserveVerdict(d time.Duration) { m.verdicts.Observe(d.Seconds()) }

// scrape serves the metrics. It fails as a whole where a figure cannot be read.
func (m *Metrics) scrape() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		ErrorHandling:       promhttp.HTTPErrorOnError,
		MaxRequestsInFlight: 8,
		Timeout:             scrapeWithin,
	})
}
