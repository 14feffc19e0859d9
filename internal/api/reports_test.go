// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sockhealth/sockhealth/internal/agent"
	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/verdict"
	"github.com/sockhealth/sockhealth/report"
)

// slack is how late a busy machine may be.
const slack = 10 * time.Second

// judge is a Judge made of a function.
type judge func(context.Context, agent.Report) ([]agent.Result, error)

func (j judge) Judge(ctx context.Context, r agent.Report) ([]agent.Result, error) { return j(ctx, r) }

// unreached is a judge that must not be asked.
func unreached(t *testing.T) judge {
	return func(_ context.Context, r agent.Report) ([]agent.Result, error) {
		t.Errorf("the judge was asked: %+v", r)
		return nil, nil
	}
}

// tempDir is t.TempDir with a short name and for all users to see: a Unix
// socket's path may have 107 bytes.
func tempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "api")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// serve runs s on the socket name of a new run directory and returns its path.
func serve(t testing.TB, s *Server, name string, mode os.FileMode) string {
	t.Helper()
	dir, err := OpenRunDir(filepath.Join(tempDir(t), "run"))
	if err != nil {
		t.Fatal(err)
	}
	l, err := dir.Listen(name, mode)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), slack)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := dir.Close(); err != nil {
			t.Error(err)
		}
	})
	return filepath.Join(dir.Path(), name)
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// exchange sends raw bytes and returns the answer.
func exchange(t testing.TB, socket, raw string) (*http.Response, string) {
	t.Helper()
	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return talk(t, c, raw)
}

func talk(t testing.TB, c net.Conn, raw string) (*http.Response, string) {
	t.Helper()
	_ = c.SetDeadline(time.Now().Add(slack))
	go func() { _, _ = io.WriteString(c, raw) }() // the answer may come before the end
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(b)
}

func post(target, body string) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", target, len(body), body)
}

func errorBody(text string) string {
	b, _ := json.Marshal(report.Error{Error: text})
	return string(b) + "\n"
}

// What is wrong with the request itself is answered before anybody is asked
// anything, so that this needs no privilege.
func TestReportsRefused(t *testing.T) {
	socket := serve(t, NewReports(unreached(t), quiet()), ReportSocket, 0o666)
	type refusal struct {
		name, raw string
		status    int
		allow     string
		want      string
	}
	cases := []refusal{
		{"GET", "GET /v1/reports HTTP/1.1\r\nHost: x\r\n\r\n", 405, "POST", `GET is not allowed on /v1/reports: use POST`},
		{"PUT", "PUT /v1/reports HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}", 405, "POST", `PUT is not allowed on /v1/reports: use POST`},
		{"odd method", "BREW /v1/reports HTTP/1.1\r\nHost: x\r\n\r\n", 405, "POST", `BREW is not allowed on /v1/reports: use POST`},
		{"path", post("/v1/report", "{}"), 404, "", `no such path "/v1/report": reports go to POST /v1/reports, judgements come from GET /v1/judgements/ID`},
		{"slash", post("/v1/reports/", "{}"), 404, "", `no such path "/v1/reports/": reports go to POST /v1/reports, judgements come from GET /v1/judgements/ID`},
		{"root", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", 404, "", `no such path "/": reports go to POST /v1/reports, judgements come from GET /v1/judgements/ID`},
		{"admin path", "GET /v1/sockets HTTP/1.1\r\nHost: x\r\n\r\n", 404, "", `no such path "/v1/sockets": reports go to POST /v1/reports, judgements come from GET /v1/judgements/ID`},
		{"wait no number", post("/v1/reports?wait=2s", exampleReport), 400, "", `query parameter "wait" is "2s", want milliseconds from 0 to 60000`},
		{"wait negative", post("/v1/reports?wait=-1", exampleReport), 400, "", `query parameter "wait" is "-1", want milliseconds from 0 to 60000`},
		{"wait too long", post("/v1/reports?wait=60001", exampleReport), 400, "", `query parameter "wait" is "60001", want milliseconds from 0 to 60000`},
		{"wait overflows", post("/v1/reports?wait=18446744073709551616", exampleReport), 400, "", `query parameter "wait" is "18446744073709551616", want milliseconds from 0 to 60000`},
		{"bare wait", post("/v1/reports?wait", exampleReport), 400, "", `query parameter "wait" is "", want milliseconds from 0 to 60000`},
		{"wait twice", post("/v1/reports?wait=0&wait=0", exampleReport), 400, "", `query parameter "wait" is given twice`},
		{"query", post("/v1/reports?wait=0&peer=x", exampleReport), 400, "", `unknown query parameter "peer": /v1/reports takes wait`},
		{"bad query", post("/v1/reports?wait=%zz", exampleReport), 400, "", `the query is malformed: invalid URL escape "%zz"`},
		{"judgement POST", post("/v1/judgements/x", "{}"), 405, "GET", `POST is not allowed on /v1/judgements/ID: use GET`},
		{"judgement query", "GET /v1/judgements/x?id=1 HTTP/1.1\r\nHost: x\r\n\r\n", 400, "", `unknown query parameter "id": /v1/judgements/ID takes wait`},
		{"judgement wait", "GET /v1/judgements/x?wait=1h HTTP/1.1\r\nHost: x\r\n\r\n", 400, "", `query parameter "wait" is "1h", want milliseconds from 0 to 60000`},
		{"too long", post("/v1/reports", strings.Repeat(" ", maxBody+1)), 413, "", `the body is over 64 KiB: it is one small JSON object`},
		{"too long, chunked", "POST /v1/reports HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" +
			fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", maxBody+1, strings.Repeat(" ", maxBody+1)), 413, "", `the body is over 64 KiB: it is one small JSON object`},
		{"just not too long", post("/v1/reports", strings.Repeat(" ", maxBody-2)+"{}"), 400, "", `the report names no socket: give "local" (getsockname), "cookie" (SO_COOKIE) or, for all sockets to it, "peer" (getpeername)`},
	}
	for _, bad := range badReports {
		cases = append(cases, refusal{"body: " + bad.name, post("/v1/reports", bad.body), 400, "", bad.want})
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			resp, got := exchange(t, socket, tc.raw)
			if resp.StatusCode != tc.status {
				t.Errorf("status %d, want %d", resp.StatusCode, tc.status)
			}
			if want := errorBody(tc.want); got != want {
				t.Errorf("body:\n got %swant %s", got, want)
			}
			if ct := resp.Header.Get("Content-Type"); ct != "application/json" {
				t.Errorf("content type %q", ct)
			}
			if a := resp.Header.Get("Allow"); a != tc.allow {
				t.Errorf("Allow %q, want %q", a, tc.allow)
			}
		})
	}
}

func TestReportsHeaderTooLong(t *testing.T) {
	socket := serve(t, NewReports(unreached(t), quiet()), ReportSocket, 0o666)
	resp, _ := exchange(t, socket, "POST /v1/reports HTTP/1.1\r\nHost: x\r\nX: "+strings.Repeat("x", 64<<10)+"\r\n\r\n")
	if resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("status %d, want 431", resp.StatusCode)
	}
}

func TestResult(t *testing.T) {
	in := []agent.Result{{
		ID: conn.ID{
			Netns: 1, Family: 2, Cookie: 71,
			Local: netip.MustParseAddrPort("10.1.1.1:40122"), Remote: netip.MustParseAddrPort("10.20.1.2:7100"),
		},
		Policy: "buffer", Verdict: verdict.DeadPath, Reason: "why", Action: agent.ActionClosed, Duration: 3100 * time.Millisecond,
		Evidence: verdict.Evidence{
			State: conn.FinWait2, PayloadSinceCall: true, BytesReceived: 1, BytesAcked: 2, Unread: 3, InFlight: true,
			DataAge: 4 * time.Millisecond, PacketAge: 5 * time.Millisecond, ProbesSent: 6, ProbeAnswered: true,
			Window: 7 * time.Millisecond, App: verdict.AppSilent, CallAge: 8 * time.Millisecond,
		},
	}, {Verdict: verdict.Gone, Action: agent.ActionNone}}
	want := report.Response{Results: []report.Result{{
		Local: "10.1.1.1:40122", Peer: "10.20.1.2:7100", Cookie: 71, Policy: "buffer",
		Verdict: "dead_path", Reason: "why", Action: "closed",
		Evidence: report.Evidence{
			State: "fin_wait2", PayloadSinceCall: true, BytesReceived: 1, BytesAcked: 2, Unread: 3, InFlight: true,
			LastDataMS: 4, LastPacketMS: 5, ProbesSent: 6, ProbeAnswered: true, WindowMS: 7, AppProbe: "silent", CallMS: 8, DurationMS: 3100,
		},
	}, {Verdict: "gone", Action: "none"}}}
	if d := cmp.Diff(want, response(in)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if b, _ := json.Marshal(response(nil)); string(b) != `{"results":[]}` {
		t.Errorf("no result is %s, want an empty list", b)
	}
}

// The state is the last one seen, also of a socket that ended meanwhile; it is
// left out only where there was never any.
func TestResultState(t *testing.T) {
	seen := verdict.Look{Found: true, Snapshot: conn.Snapshot{State: conn.FinWait2}}
	for want, in := range map[string]verdict.Input{
		"fin_wait2": {Before: seen, Probe: verdict.Probe{Done: true}},
		"":          {},
	} {
		if got := result(&agent.Result{Verdict: verdict.Gone, Evidence: in.Evidence()}).Evidence.State; got != want {
			t.Errorf("state %q, want %q", got, want)
		}
	}
}

// A thousand clients that send half a header cost a bounded number of
// goroutines, the ones over the limit are told, and all goes back to rest.
func TestSlowClientsAreBounded(t *testing.T) {
	s := NewReports(unreached(t), quiet())
	s.waitLong()
	socket := serve(t, s, ReportSocket, 0o666)
	const clients = 1000
	rest := runtime.NumGoroutine()
	conns := make([]net.Conn, clients)
	for i := range conns {
		c, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _ = io.WriteString(c, "POST /v1/reports HTTP/1.1\r\nHost: x\r\n") // fails where dropped
		conns[i] = c
	}
	waitFor(t, "the last client to be dropped", func() bool {
		_ = conns[clients-1].SetReadDeadline(time.Now().Add(time.Millisecond))
		_, err := conns[clients-1].Read(make([]byte, 1))
		return err != nil && !os.IsTimeout(err)
	})
	if n := runtime.NumGoroutine() - rest; n > maxUserConns+maxRefused+10 {
		t.Errorf("%d goroutines more for %d clients, want at most one a place, %d", n, clients, maxUserConns+maxRefused)
	}
	open, refused := s.quota.counts()
	if open != maxUserConns || refused != maxRefused {
		t.Errorf("%d open and %d refused, want %d and %d", open, refused, maxUserConns, maxRefused)
	}
	resp, got := talk(t, conns[maxUserConns], "\r\n")
	want := errorBody("too many connections: at most 1024 at a time, 512 of one network namespace and 342 of one user there, and fewer while others have many; close some or try again in a second")
	if resp.StatusCode != http.StatusServiceUnavailable || got != want || resp.Header.Get("Retry-After") != "1" || !resp.Close {
		t.Errorf("over the limit: status %d, retry %q, close %v, body %s", resp.StatusCode, resp.Header.Get("Retry-After"), resp.Close, got)
	}
	resp, _ = talk(t, conns[0], "\r\n") // within the limit: served, late as it is
	if resp.StatusCode != http.StatusBadRequest {
		t.Errorf("within the limit: status %d, want 400 for the empty body", resp.StatusCode)
	}
	for _, c := range conns {
		_ = c.Close()
	}
	waitFor(t, "every place to be given back", func() bool {
		open, refused := s.quota.counts()
		return open == 0 && refused == 0
	})
}

func waitFor(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(slack); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %s for %s", slack, what)
		}
	}
}

// waitLong gives clients that say nothing a minute: a slow machine may take longer to
// have them all than they have.
func (s *Server) waitLong() { s.http.ReadHeaderTimeout, s.http.ReadTimeout = time.Minute, time.Minute }

// counts returns what is counted now.
func (q *quota) counts() (open, refused int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.open, q.refused
}
