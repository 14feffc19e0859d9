// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// agent serves h on a Unix socket and returns its path.
func agent(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "report.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(h)
	s.Listener.Close()
	s.Listener = l
	s.Start()
	t.Cleanup(s.Close)
	return path
}

func TestReportCarriesEveryField(t *testing.T) {
	want := &Response{Results: []Result{{
		Local: "10.1.1.1:40122", Peer: "10.20.1.2:7100", Cookie: 71, Policy: "buffer",
		Verdict: "dead_path", Reason: "why", Action: "closed",
		Evidence: Evidence{
			State: "established", PayloadSinceCall: true, BytesReceived: 1 << 60, BytesAcked: 2, Unread: 3,
			InFlight: true, LastDataMS: 4, LastPacketMS: 5, ProbesSent: 6, ProbeAnswered: true,
			WindowMS: 7, CallMS: 8, DurationMS: 9,
		},
	}}}
	var line, body string
	path := agent(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		line, body = r.Method+" "+r.URL.String(), string(b)
		_ = json.NewEncoder(w).Encode(want)
	})
	c := Client{Socket: path}
	got, err := c.Report(t.Context(), Request{Peer: "10.20.1.2:7100", Local: "10.1.1.1:40122", Cookie: 71, ElapsedMS: 2000})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("response (-want +got):\n%s", d)
	}
	if want := "POST /v1/reports"; line != want {
		t.Errorf("request line %q, want %q", line, want)
	}
	if want := `{"peer":"10.20.1.2:7100","local":"10.1.1.1:40122","cookie":71,"elapsed_ms":2000}`; body != want {
		t.Errorf("body %s, want %s", body, want)
	}
}

func TestReportRefused(t *testing.T) {
	for _, tc := range []struct {
		name, body, header string
		status             int
		want               StatusError
		text               string
	}{
		{"bad request", `{"error": "field \"peer\" is given twice"}`, "", 400,
			StatusError{400, `field "peer" is given twice`, 0},
			`report to sockhealth agent: report refused with status 400: field "peer" is given twice`},
		{"busy", `{"error": "busy"}`, "2", 503, StatusError{503, "busy", 2 * time.Second},
			"report to sockhealth agent: report refused with status 503: busy"},
		{"not an agent", "<html>" + strings.Repeat("x", 300), "", 404,
			StatusError{404, "<html>" + strings.Repeat("x", 194), 0},
			"report to sockhealth agent: report refused with status 404: <html>" + strings.Repeat("x", 194)},
		{"no text", "", "soon", 500, StatusError{500, "Internal Server Error", 0},
			"report to sockhealth agent: report refused with status 500: Internal Server Error"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := agent(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Retry-After", tc.header)
				w.WriteHeader(tc.status)
				_, _ = io.WriteString(w, tc.body)
			})
			_, err := (&Client{Socket: path}).Report(t.Context(), Request{})
			var got *StatusError
			if !errors.As(err, &got) {
				t.Fatalf("error %v, want a *StatusError", err)
			}
			if d := cmp.Diff(tc.want, *got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			if err.Error() != tc.text {
				t.Errorf("text %q, want %q", err, tc.text)
			}
			if errors.Is(err, ErrUnreachable) {
				t.Error("an agent that refuses was reached")
			}
		})
	}
}

func TestReportUnreachable(t *testing.T) {
	dir := t.TempDir()
	nobody := filepath.Join(dir, "nobody.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: nobody, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	dies := agent(t, func(w http.ResponseWriter, _ *http.Request) { panic(http.ErrAbortHandler) })
	half := agent(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, `{"results": [`)
		panic(http.ErrAbortHandler)
	})
	for name, path := range map[string]string{
		"no socket": filepath.Join(dir, "none.sock"), "nobody listens": nobody,
		"agent dies": dies, "agent dies half-way": half,
	} {
		t.Run(name, func(t *testing.T) {
			_, err := (&Client{Socket: path}).Report(t.Context(), Request{})
			if !errors.Is(err, ErrUnreachable) {
				t.Errorf("error %v, want ErrUnreachable", err)
			}
			if !strings.Contains(err.Error(), path) {
				t.Errorf("error %q does not name %s", err, path)
			}
		})
	}
}

func TestReportNotJSON(t *testing.T) {
	path := agent(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "well") })
	_, err := (&Client{Socket: path}).Report(t.Context(), Request{})
	if err == nil || errors.Is(err, ErrUnreachable) {
		t.Errorf("error %v, want one about the answer", err)
	}
}

func TestReportContextEnds(t *testing.T) {
	gone := make(chan struct{})
	ctx, pass := newExpiry(t)
	path := agent(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		pass()
		<-r.Context().Done()
		close(gone)
	})
	_, err := (&Client{Socket: path}).Report(ctx, Request{})
	if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrUnreachable) {
		t.Errorf("error %v, want DeadlineExceeded alone", err)
	}
	select { // and the agent learns of it
	case <-gone:
	case <-time.After(10 * time.Second):
		t.Error("the agent still holds the request")
	}
}

func TestDefaultSocket(t *testing.T) {
	_, err := (&Client{}).Report(t.Context(), Request{})
	if err != nil && !strings.Contains(err.Error(), DefaultSocket) {
		t.Errorf("error %q does not name %s", err, DefaultSocket)
	}
}
