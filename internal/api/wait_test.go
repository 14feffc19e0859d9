// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/agent"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/report"
)

// toldJudge is a judge that answers when told to, and how its contexts ended.
type toldJudge struct {
	asked  chan agent.Report
	answer chan []agent.Result
	ended  chan error
}

func newToldJudge() *toldJudge {
	return &toldJudge{asked: make(chan agent.Report, 100), answer: make(chan []agent.Result), ended: make(chan error, 100)}
}

func (j *toldJudge) Judge(ctx context.Context, r agent.Report) ([]agent.Result, error) {
	j.asked <- r
	select {
	case results := <-j.answer:
		return results, nil
	case <-ctx.Done():
		j.ended <- ctx.Err()
		return nil, ctx.Err()
	}
}

// reportsOf returns the handler of a report server.
func reportsOf(s *Server) *reports { return s.http.Handler.(limited).Handler.(*reports) }

// onClock puts the judgements of a report server on a clock wound by hand.
func onClock(s *Server) *timers {
	clock := &timers{}
	reportsOf(s).kept.after = clock.after
	return clock
}

func getJudgement(t *testing.T, socket, id, query string) (int, string) {
	t.Helper()
	resp, body := exchange(t, socket, "GET /v1/judgements/"+id+query+" HTTP/1.1\r\nHost: x\r\n\r\n")
	return resp.StatusCode, body
}

func pending(id string) string { return fmt.Sprintf("{\"judgement\":%q}\n", id) }

// submit reports with wait=0 and returns the id.
func submit(t *testing.T, socket string) string {
	t.Helper()
	resp, body := exchange(t, socket, post("/v1/reports?wait=0", exampleReport))
	var p report.Pending
	if err := json.Unmarshal([]byte(body), &p); err != nil || resp.StatusCode != http.StatusAccepted || p.Judgement == "" {
		t.Fatalf("status %d, body %s", resp.StatusCode, body)
	}
	return p.Judgement
}

const noJudgement = "no such judgement: its id is known to who reported alone, and for 60 s after the answer is in"

// From the report without waiting to the answer's end.
func TestWaitZero(t *testing.T) {
	labtest.Root(t)
	j := newToldJudge()
	s := NewReports(j, quiet())
	clock := onClock(s)
	socket := serve(t, s, ReportSocket, 0o666)
	id := submit(t, socket)
	asked := <-j.asked
	if asked.Local.String() != "10.1.1.1:40122" || asked.Caller.UID != 0 {
		t.Errorf("asked %+v", asked)
	}
	clock.wind(time.Hour)
	for _, query := range []string{"", "?wait=0", "?wait=30"} {
		if status, body := getJudgement(t, socket, id, query); status != 202 || body != pending(id) {
			t.Errorf("under way%s: status %d, body %s", query, status, body)
		}
	}
	if asked.Caller.NS.FD() == -1 {
		t.Error("the namespace was let go of while the judge works in it")
	}
	go func() { j.answer <- []agent.Result{{Verdict: "alive", Action: "none"}} }()
	status, body := getJudgement(t, socket, id, "?wait=60000") // comes back when it is in
	var got report.Response
	if err := json.Unmarshal([]byte(body), &got); err != nil || status != 200 || len(got.Results) != 1 || got.Results[0].Verdict != "alive" {
		t.Errorf("in: status %d, body %s", status, body)
	}
	waitFor(t, "the namespace to be let go of", func() bool { return asked.Caller.NS.FD() == -1 })
	clock.wind(keepFor - 1)
	if status, again := getJudgement(t, socket, id, ""); status != 200 || again != body {
		t.Errorf("a second time: status %d, body %s, want %s", status, again, body)
	}
	clock.wind(1)
	if status, body := getJudgement(t, socket, id, ""); status != 404 || body != errorBody(noJudgement) {
		t.Errorf("expired: status %d, body %s", status, body)
	}
	if status, body := getJudgement(t, socket, "", ""); status != 404 || body != errorBody(noJudgement) {
		t.Errorf("no id: status %d, body %s", status, body)
	}
}

// A judgement is the caller's own: user and namespace.
func TestJudgementOfAnother(t *testing.T) {
	labtest.Root(t)
	j := newToldJudge()
	socket := serve(t, NewReports(j, quiet()), ReportSocket, 0o666)
	id := submit(t, socket)
	<-j.asked
	j.answer <- nil
	get := "GET /v1/judgements/" + id + " HTTP/1.1\r\nHost: x\r\n\r\n"
	var user, space net.Conn
	asUser(t, 12345, func() { user = dial(t, socket) })
	if err := labtest.Netns(t).Do(func() error { space = dial(t, socket); return nil }); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]net.Conn{"another user": user, "another namespace": space} {
		if resp, body := talk(t, c, get); resp.StatusCode != 404 || body != errorBody(noJudgement) {
			t.Errorf("%s: status %d, body %s", name, resp.StatusCode, body)
		}
	}
	if status, body := getJudgement(t, socket, id, "?wait=10000"); status != 200 || body != "{\"results\":[]}\n" {
		t.Errorf("its own: status %d, body %s", status, body)
	}
}

// With a time to wait the answer comes within it, or else the id does.
func TestWaitSome(t *testing.T) {
	labtest.Root(t)
	j := newToldJudge()
	s := NewReports(j, quiet())
	socket := serve(t, s, ReportSocket, 0o666)
	go func() { <-j.asked; j.answer <- nil }()
	resp, body := exchange(t, socket, post("/v1/reports?wait=9000", exampleReport))
	if resp.StatusCode != 200 || body != "{\"results\":[]}\n" {
		t.Errorf("in time: status %d, body %s", resp.StatusCode, body)
	}
	kept := reportsOf(s).kept
	kept.mu.Lock()
	if len(kept.byID) != 0 {
		t.Errorf("%d ids are kept that nobody knows", len(kept.byID))
	}
	kept.mu.Unlock()
	resp, body = exchange(t, socket, post("/v1/reports?wait=20", exampleReport))
	var p report.Pending
	if err := json.Unmarshal([]byte(body), &p); err != nil || resp.StatusCode != 202 || p.Judgement == "" {
		t.Fatalf("not in time: status %d, body %s", resp.StatusCode, body)
	}
	j.answer <- nil
	if status, body := getJudgement(t, socket, p.Judgement, "?wait=9000"); status != 200 {
		t.Errorf("status %d, body %s", status, body)
	}
}

// A judgement that fails is told as it would have been at once.
func TestWaitZeroNotJudged(t *testing.T) {
	labtest.Root(t)
	fails := judge(func(context.Context, agent.Report) ([]agent.Result, error) {
		return nil, fmt.Errorf("judge: %w", agent.ErrForbidden)
	})
	socket := serve(t, NewReports(fails, quiet()), ReportSocket, 0o666)
	status, body := getJudgement(t, socket, submit(t, socket), "?wait=9000")
	if want := errorBody("the agent does not serve your network namespace: its --netns does not cover it [start it with --netns all, or with this namespace among its paths]"); status != 403 || body != want {
		t.Errorf("status %d, body %s", status, body)
	}
}

func TestTooManyJudgements(t *testing.T) {
	labtest.Root(t)
	s := NewReports(judge(func(ctx context.Context, _ agent.Report) ([]agent.Result, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}), quiet())
	reportsOf(s).buckets = nil
	c := dial(t, serve(t, s, ReportSocket, 0o666))
	for range maxCallerIDs {
		if resp, body := talk(t, c, post("/v1/reports?wait=0", exampleReport)); resp.StatusCode != 202 {
			t.Fatalf("status %d, body %s", resp.StatusCode, body)
		}
	}
	resp, body := talk(t, c, post("/v1/reports?wait=0", exampleReport))
	want := errorBody("too many judgements: 256 are kept of one user in one network namespace; try again in a second")
	if resp.StatusCode != 429 || body != want || resp.Header.Get("Retry-After") != "1" {
		t.Errorf("status %d, retry %q, body %s", resp.StatusCode, resp.Header.Get("Retry-After"), body)
	}
}

// The server's end is that of the judgements that nobody waits for, and of who
// waits for them.
func TestShutdownEndsJudgements(t *testing.T) {
	labtest.Root(t)
	j := newToldJudge()
	s := NewReports(j, quiet())
	var active atomic.Int64
	s.http.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateActive {
			active.Add(1)
		}
	}
	socket := serve(t, s, ReportSocket, 0o666)
	id := submit(t, socket)
	asked := <-j.asked
	waiting := dial(t, socket)
	answered := make(chan string, 1)
	go func() {
		defer close(answered)
		resp, body := talk(t, waiting, "GET /v1/judgements/"+id+"?wait=60000 HTTP/1.1\r\nHost: x\r\n\r\n")
		answered <- fmt.Sprint(resp.StatusCode, " ", body)
	}()
	waitFor(t, "the client to wait", func() bool { return active.Load() == 2 })
	ctx, cancel := context.WithTimeout(t.Context(), slack)
	defer cancel()
	if err := s.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	if err := <-j.ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the judge's context ended with %v", err)
	}
	if asked.Caller.NS.FD() != -1 {
		t.Error("the namespace is still held")
	}
	if got, want := <-answered, "503 "+errorBody("the agent is stopping: try again when it is back"); got != want {
		t.Errorf("who waited got %s, want %s", got, want)
	}
}
