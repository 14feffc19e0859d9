// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"io"
	"log/slog"
	"net/http"
	"time"
)

// Times a client has.
const (
	headerWithin = 5 * time.Second
	scrapeWithin = 20 * time.Second
	idleWithin   = 2 * time.Minute
	maxHeader    = 16 << 10
)

const index = `<!DOCTYPE html>
<html lang="en"><head><title>sockhealth</title></head><body>
<h1>sockhealth</h1>
<ul>
<li><a href="/metrics">/metrics</a>: the metrics</li>
<li><a href="/-/healthy">/-/healthy</a>: the process answers</li>
<li><a href="/-/ready">/-/ready</a>: connections are bounded and reports are heard</li>
</ul>
</body></html>
`

// Handler serves /metrics, /-/healthy, /-/ready and a page that names them.
// ready returns nil where the agent does its work, else why not; it must not
// block.
func (m *Metrics) Handler(ready func() error) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", m.scrape())
	mux.HandleFunc("GET /-/healthy", func(w http.ResponseWriter, _ *http.Request) {
		text(w, http.StatusOK, "healthy\n")
	})
	mux.HandleFunc("GET /-/ready", func(w http.ResponseWriter, _ *http.Request) {
		if err := ready(); err != nil {
			text(w, http.StatusServiceUnavailable, "not ready: "+err.Error()+"\n")
			return
		}
		text(w, http.StatusOK, "ready\n")
	})
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = io.WriteString(w, index)
	})
	return mux
}

// Server returns a server for the handler with bounds on what a client may
// take. The caller runs and stops it.
func (m *Metrics) Server(ready func() error, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           m.Handler(ready),
		ReadHeaderTimeout: headerWithin,
		ReadTimeout:       headerWithin,
		WriteTimeout:      scrapeWithin + headerWithin,
		IdleTimeout:       idleWithin,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
}

func text(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body)
}
