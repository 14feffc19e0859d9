// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func diff(want, got string) string { return cmp.Diff(want, got) }

// get asks the handler.
func get(t *testing.T, m *Metrics, ready error, method, path string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler(func() error { return ready }).ServeHTTP(w, httptest.NewRequest(method, path, nil))
	b, err := io.ReadAll(w.Result().Body)
	if err != nil {
		t.Fatal(err)
	}
	return w.Code, string(b)
}

func scrape(t *testing.T, m *Metrics) (int, string) {
	t.Helper()
	return get(t, m, nil, http.MethodGet, "/metrics")
}

// gathered compares the metrics that the collector makes, help and type too.
func gathered(t *testing.T, m *Metrics, want string) {
	t.Helper()
	_, body := scrape(t, m)
	var got strings.Builder
	for line := range strings.Lines(body) {
		if strings.Contains(line, " "+prefix) || strings.HasPrefix(line, prefix) {
			if !strings.Contains(line, "_info") && !strings.Contains(line, "_duration_") {
				got.WriteString(line)
			}
		}
	}
	if d := diff(strings.TrimPrefix(want, "\n"), got.String()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestHandler(t *testing.T) {
	m := fresh().metrics()
	notReady := errors.New("no policy is in force")
	for _, tc := range []struct {
		method, path string
		ready        error
		status       int
		want         string
	}{
		{"GET", "/-/healthy", notReady, 200, "healthy\n"},
		{"GET", "/-/ready", nil, 200, "ready\n"},
		{"GET", "/-/ready", notReady, 503, "not ready: no policy is in force\n"},
		{"GET", "/", nil, 200, index},
		{"GET", "/nothing", nil, 404, "404 page not found\n"},
		{"POST", "/metrics", nil, 405, "Method Not Allowed\n"},
	} {
		status, got := get(t, m, tc.ready, tc.method, tc.path)
		if status != tc.status || got != tc.want {
			t.Errorf("%s %s: %d, %q; want %d, %q", tc.method, tc.path, status, got, tc.status, tc.want)
		}
	}
	if status, body := scrape(t, m); status != 200 || !strings.Contains(body, "\ngo_goroutines ") || !strings.Contains(body, "\nprocess_") {
		t.Errorf("status %d, and the runtime's and the process's metrics are missing", status)
	}
}

// Figures that cannot be read fail the scrape; they are not left out.
func TestScrapeFails(t *testing.T) {
	counters, faults := fresh(), fresh()
	counters.countersErr = errors.New(`read counters of policy "buffer": bad file descriptor`)
	faults.faultsErr = errors.New("read counter of fault no_socket: bad file descriptor")
	for _, f := range []*fake{counters, faults} {
		want := errors.Join(f.countersErr, f.faultsErr).Error()
		if status, body := scrape(t, f.metrics()); status != 500 || !strings.Contains(body, want) {
			t.Errorf("status %d, body %s; want 500 and %s", status, body, want)
		}
	}
}

func TestServerHasBounds(t *testing.T) {
	s := fresh().metrics().Server(func() error { return nil }, slog.New(slog.DiscardHandler))
	if s.ReadHeaderTimeout == 0 || s.ReadTimeout == 0 || s.WriteTimeout <= scrapeWithin || s.IdleTimeout == 0 || s.MaxHeaderBytes == 0 {
		t.Errorf("a bound is missing: %+v", s)
	}
}
