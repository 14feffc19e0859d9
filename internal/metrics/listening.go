// SPDX-License-Identifier: Apache-2.0

package metrics

import "github.com/prometheus/client_golang/prometheus"

// API says whether the agent's Unix sockets can be reached.
type API interface {
	Endpoints() []Endpoint
}

// Endpoint is one Unix socket of the agent.
type Endpoint struct {
	Socket string // its name in the run directory
	// Reached says that its name leads to this agent now.
	Reached bool
	// Remade is how often it did not, and was made again.
	Remade uint64
}

// listening are the metrics of the Unix sockets.
type listening struct {
	reached, remade *prometheus.Desc
}

func newListening(desc func(name, help string, labels ...string) *prometheus.Desc) listening {
	return listening{
		reached: desc("api_reachable", "1 where the name of the agent's Unix socket leads to this agent, 0 where nobody reaches it.", "socket"),
		remade:  desc("api_sockets_remade_total", "How often a Unix socket of the agent was removed or replaced, and made again.", "socket"),
	}
}

func (l *listening) describe(ch chan<- *prometheus.Desc) {
	ch <- l.reached
	ch <- l.remade
}

func (l *listening) collect(s sink, ends []Endpoint) {
	for _, e := range ends {
		s.gauge(l.reached, boolean(e.Reached), e.Socket)
		s.counter(l.remade, e.Remade, e.Socket)
	}
}
