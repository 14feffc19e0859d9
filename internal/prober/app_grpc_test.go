// SPDX-License-Identifier: Apache-2.0

package prober

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sockhealth/sockhealth/internal/lab/labtest"
)

// serveH2 serves HTTP/2 without TLS on loopback and returns the address, and
// the states that its connections went through.
func serveH2(t *testing.T, handle http.HandlerFunc) (netip.AddrPort, <-chan http.ConnState) {
	t.Helper()
	states := make(chan http.ConnState, 64)
	s := httptest.NewUnstartedServer(handle)
	_ = s.Listener.Close()
	s.Listener = labtest.Listen(t, here(t), loopback4)
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) { states <- state }
	s.Start()
	t.Cleanup(s.Close)
	return labtest.Addr(s.Listener.Addr()), states
}

func TestHealthCheck(t *testing.T) {
	type request struct {
		Method, URI, ContentType, TE, Agent, Timeout, Body string
	}
	seen := make(chan request, 1)
	addr, states := serveH2(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		seen <- request{r.Method, r.URL.Path, r.Header.Get("Content-Type"), r.Header.Get("Te"),
			r.UserAgent(), r.Header.Get("Grpc-Timeout"), string(body)}
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
		_, _ = w.Write([]byte{0, 0, 0, 0, 2, 1<<3 | 0, 2}) // NOT_SERVING
	})
	if got := newApps(t).Ask(t.Context(), here(t), addr, patient(probeGRPC("buffer.v1.Buffer"))); got != AppAnswered {
		t.Errorf("outcome %s, want answered", got)
	}
	want := request{"POST", "/grpc.health.v1.Health/Check", "application/grpc", "trailers",
		"sockhealth/0.1.0", "20000m", "\x00\x00\x00\x00\x12\x0a\x10buffer.v1.Buffer"}
	select {
	case got := <-seen:
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("request (-want +got):\n%s", diff)
		}
	case <-time.After(patience):
		t.Error("the call did not come through")
	}
	for deadline := time.After(patience); ; {
		select {
		case state := <-states:
			if state == http.StateClosed {
				return
			}
		case <-deadline:
			t.Fatal("the connection was left open")
		}
	}
}

// What servers say that have no health service, or no gRPC, or are not well.
func TestHealthCheckRefused(t *testing.T) {
	for what, handle := range map[string]http.HandlerFunc{
		"UNIMPLEMENTED": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/grpc")
			w.Header().Set("Grpc-Status", "12")
		},
		"404":   http.NotFound,
		"stuck": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
	} {
		t.Run(what, func(t *testing.T) {
			addr, _ := serveH2(t, handle)
			if got := newApps(t).Ask(t.Context(), here(t), addr, patient(probeGRPC(""))); got != AppAnswered {
				t.Errorf("outcome %s, want answered", got)
			}
		})
	}
}

func TestHealthCheckMessage(t *testing.T) {
	long := strings.Repeat("s", 255)
	for service, want := range map[string]string{
		"":   "\x00\x00\x00\x00\x00",
		"a":  "\x00\x00\x00\x00\x03\x0a\x01a",
		long: "\x00\x00\x00\x01\x02\x0a\xff\x01" + long,
	} {
		if diff := cmp.Diff(want, string(healthCheck(service))); diff != "" {
			t.Errorf("service %q (-want +got):\n%s", service, diff)
		}
	}
}

// The HTTP/2 client would dial again where the first connection ends early.
func TestHealthCheckDialsOnce(t *testing.T) {
	s := start(t, here(t), loopback4, func(c *net.TCPConn) {
		// SETTINGS, and a GOAWAY that says nothing was processed: safe to try again.
		_, _ = io.WriteString(c, "\x00\x00\x00\x04\x00\x00\x00\x00\x00"+
			"\x00\x00\x08\x07\x00\x00\x00\x00\x00"+"\x00\x00\x00\x00"+"\x00\x00\x00\x00")
		_ = c.CloseWrite()
	})
	if got := newApps(t).Ask(t.Context(), s.ns, s.addr, patient(probeGRPC(""))); got != AppAnswered {
		t.Errorf("outcome %s, want answered", got)
	}
	s.ends(t)
	if n := s.accepts.Load(); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
}
