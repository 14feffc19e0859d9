// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sockhealth/sockhealth/internal/agent"
	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/container"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/verdict"
	"github.com/sockhealth/sockhealth/report"
)

// The agent is what the servers ask.
var (
	_ EventSource = (*agent.Agent)(nil)
	_ Judge       = (*agent.Agent)(nil)
)

func entry(policy string, netns uint32, peer string) agent.Entry {
	return agent.Entry{
		Kind: agent.EntryVerdict, Policy: policy, ID: conn.ID{Netns: netns, Remote: netip.MustParseAddrPort(peer)},
		Result: &agent.Result{Verdict: verdict.DeadPath, Action: agent.ActionClosed},
	}
}

// filterable are five entries that differ in what can be asked for.
func filterable() []agent.Entry {
	other := entry("a", 1, "[fd91::7]:80")
	other.Result, other.Reporter = &agent.Result{Verdict: verdict.Alive, Action: agent.ActionNone}, "admin"
	other.ID.Cookie, other.Container = 71, container.ID{Container: "c0ffee", Pod: "a-pod"}
	end := entry("b", 2, "10.91.2.9:80")
	end.Kind, end.Result, end.Event = agent.EntryEnd, nil, &loader.Event{Cause: loader.CauseIdle}
	stall := end
	stall.Kind, stall.Container = agent.EntryStall, container.ID{Container: "c0ffee", Pod: "a-pod"}
	return []agent.Entry{entry("a", 1, "10.91.2.1:80"), entry("b", 2, "10.91.2.1:81"), other, end, stall}
}

func TestNewEvent(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	id := conn.ID{Netns: 9, Cookie: 71, Local: netip.MustParseAddrPort("10.91.1.1:1"), Remote: netip.MustParseAddrPort("10.91.2.1:2")}
	whole := Event{Schema: 1, Seq: 7, Time: at, Netns: 9, Local: "10.91.1.1:1", Peer: "10.91.2.1:2", Cookie: 71, Policy: "p", Lost: 3}

	judged := whole
	judged.Kind, judged.Verdict = "verdict", &VerdictEvent{
		Verdict: "dead_path", Reason: "why", Action: "closed", Revision: "0123456789ab", Reporter: "call", UID: 1000, PID: 4,
		Evidence: report.Evidence{ProbesSent: 5, DurationMS: 1, Delivery: "acknowledged", Unacked: 3, Unsent: 2},
		Probes:   []agent.Attempt{{AtMS: 7}}, Basis: &verdict.Basis{SentNS: -5},
	}
	ended := whole
	ended.Kind, ended.End = "end", &EndEvent{
		Cause: "idle_bound", Errno: "connection timed out", Direction: "inbound",
		BytesReceived: 1, BytesAcked: 2, Retransmits: 3, ProbesOut: 4,
	}
	for _, tc := range []struct {
		in   agent.Entry
		want Event
	}{
		{agent.Entry{Kind: agent.EntryVerdict, Reporter: "call", UID: 1000, PID: 4, Result: &agent.Result{
			Verdict: verdict.DeadPath, Reason: "why", Action: agent.ActionClosed, Duration: time.Millisecond,
			Evidence: verdict.Evidence{ProbesSent: 5, Unacked: 3, Unsent: 2}, Delivery: verdict.Acknowledged,
			Revision: "0123456789ab", Attempts: []agent.Attempt{{AtMS: 7}}, Basis: &verdict.Basis{SentNS: -5},
		}}, judged},
		{agent.Entry{Kind: agent.EntryEnd, Event: &loader.Event{
			Cause: loader.CauseIdle, Errno: syscall.ETIMEDOUT, Direction: conn.Inbound,
			BytesReceived: 1, BytesAcked: 2, Retransmits: 3, ProbesOut: 4,
		}}, ended},
	} {
		tc.in.Seq, tc.in.Time, tc.in.Policy, tc.in.ID = 7, at, "p", id
		if d := cmp.Diff(tc.want, newEvent(&tc.in, 3)); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
	}
}

// filtering is a client of a journal with the events of filterable.
func filtering(t *testing.T) *Client {
	t.Helper()
	labtest.Root(t)
	events := &journal{}
	events.add(filterable()...)
	return Dial(filepath.Dir(serve(t, NewAdmin(&fixed{names: []string{"quiet", "a"}}, events, unreached(t), quiet()), AdminSocket, 0o600)))
}

func TestEventFilters(t *testing.T) {
	c := filtering(t)
	peer := func(s string) netip.Prefix {
		p, err := ParsePeer(s)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	for _, tc := range []struct {
		query EventQuery
		want  []uint64
	}{
		{EventQuery{}, []uint64{1, 2, 3, 4, 5}},
		{EventQuery{Since: 3}, []uint64{4, 5}},
		{EventQuery{Policy: "b"}, []uint64{2, 4, 5}},
		{EventQuery{Since: 4}, []uint64{5}},
		{EventQuery{Since: 5}, nil},
		{EventQuery{Kind: "verdict"}, []uint64{1, 2, 3}},
		{EventQuery{Action: "closed"}, []uint64{1, 2}},
		{EventQuery{Action: "none"}, []uint64{3}},
		{EventQuery{Reporter: "admin"}, []uint64{3}},
		{EventQuery{Cookie: 71}, []uint64{3}},
		{EventQuery{Pod: "a-pod"}, []uint64{3, 5}},
		{EventQuery{Pod: "a-po"}, nil},
		{EventQuery{Container: "c0f"}, []uint64{3, 5}},
		{EventQuery{Container: "c0ffee", Kind: "stall"}, []uint64{5}},
		{EventQuery{Kind: "stall"}, []uint64{5}},
		{EventQuery{Verdict: "dead_path"}, []uint64{1, 2}},
		{EventQuery{Peer: peer("10.91.2.1")}, []uint64{1, 2}},
		{EventQuery{Peer: peer("10.91.2.77/24")}, []uint64{1, 2, 4, 5}},
		{EventQuery{Peer: peer("::ffff:10.91.2.9")}, []uint64{4, 5}},
		{EventQuery{Peer: peer("::ffff:10.91.0.0/112")}, []uint64{1, 2, 4, 5}},
		{EventQuery{Peer: peer("fd91::/16")}, []uint64{3}},
		{EventQuery{Netns: 2}, []uint64{2, 4, 5}},
		{EventQuery{Netns: 2, Verdict: "dead_path", Policy: "b", Peer: peer("10.91.0.0/16"), Kind: "verdict"}, []uint64{2}},
		{EventQuery{Policy: "quiet"}, nil}, // in force, and nothing happened to it
	} {
		var got []uint64
		err := c.Events(t.Context(), tc.query, func(e Event) error {
			got = append(got, e.Seq)
			if e.Lost != 0 {
				t.Errorf("%+v: %d lost, although only left out", tc.query, e.Lost)
			}
			return nil
		})
		if d := cmp.Diff(tc.want, got); d != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", tc.query.query(), err, d)
		}
	}
}

// TestEventsOfNobody: a name that nothing has is a mistake, which an empty answer would
// hide; with Follow it would be waited for in vain.
func TestEventsOfNobody(t *testing.T) {
	c := filtering(t)
	for _, follow := range []bool{false, true} {
		ctx, cancel := context.WithTimeout(t.Context(), slack)
		defer cancel()
		err := c.Events(ctx, EventQuery{Policy: "nosuch", Follow: follow}, func(Event) error { return errors.New("told") })
		if !errors.Is(err, ErrRequest) || !strings.HasSuffix(err.Error(), `"nosuch", which is no entry of the policy file in force, nor of an event that is kept: the file has quiet and a`) {
			t.Errorf("follow %v: %v", follow, err)
		}
	}
}

func TestEventsRefused(t *testing.T) {
	labtest.Root(t)
	socket := serve(t, newAdmin(t, &fixed{}), AdminSocket, 0o600)
	for query, want := range map[string]string{
		"follow=maybe":      `query parameter "follow" is "maybe", want 1 or 0`,
		"since=-1":          `query parameter "since" is "-1", want ` + sinceWanted,
		"since=-5m":         `query parameter "since" is "-5m", want ` + sinceWanted,
		"since=0s":          `query parameter "since" is "0s", want ` + sinceWanted,
		"since=7":           `query parameter "since" is 7, and the newest event has number 0: they count from 1 again since the agent was started anew`,
		"action=kill":       `query parameter "action" is "kill", want one of none, closed, deferred, observed, frozen, failed`,
		"reporter=me":       `query parameter "reporter" is "me", want one of call, silence, sweep, limit, admin`,
		"cookie=0":          `query parameter "cookie" is "0", want a socket's SO_COOKIE`,
		"kind=close":        `query parameter "kind" is "close", want one of verdict, end, stall`,
		"verdict=dead":      `query parameter "verdict" is "dead", want one of ` + strings.Join(VerdictWords(), ", "),
		"peer=db.example":   `query parameter "peer" is "db.example", want an IP address or a prefix such as 10.20.0.0/16`,
		"netns=x":           `query parameter "netns" is "x", want a namespace's inode number, as in /proc/PID/ns/net`,
		"netns=0":           `query parameter "netns" is "0", want a namespace's inode number, as in /proc/PID/ns/net`,
		"limit=5":           `unknown query parameter "limit": /v1/events takes follow, since, policy, kind, verdict, action, reporter, peer, netns, cookie, pod and container`,
		"policy=a&policy=b": `query parameter "policy" is given twice`,
	} {
		resp, got := exchange(t, socket, "GET /v1/events?"+query+" HTTP/1.1\r\nHost: x\r\n\r\n")
		if resp.StatusCode != 400 || got != errorBody(want) {
			t.Errorf("%s: status %d, body %s, want %s", query, resp.StatusCode, got, want)
		}
	}
}

// Since is a number, a moment or an age: what is kept no longer is told where it may
// have been asked for, and not where all that is missing is older.
func TestEventsSince(t *testing.T) {
	labtest.Root(t)
	now := time.Now()
	at := func(ago time.Duration) agent.Entry {
		e := entry("a", 1, "10.91.2.1:80")
		e.Time, e.Noted = now.Add(-ago), now.Add(-ago)
		return e
	}
	late := at(4 * time.Hour) // it ended while no agent ran
	late.Noted = now
	events := &journal{seq: 10} // ten are not kept any more
	events.add(at(3*time.Hour), at(2*time.Hour))
	events.seq += 5
	events.add(at(time.Hour), at(time.Minute), at(0))
	events.seq += 2
	events.add(late, at(0))
	c := Dial(filepath.Dir(serve(t, NewAdmin(&fixed{}, events, unreached(t), quiet()), AdminSocket, 0o600)))
	for since, want := range map[string]string{
		"0":   "11+0 12+0 18+5 19+0 20+0 23+2 24+0", // who asks for all that is kept misses what is between
		"11":  "12+0 18+5 19+0 20+0 23+2 24+0",
		"4":   "11+6 12+0 18+5 19+0 20+0 23+2 24+0",
		"20":  "23+2 24+0",
		"24":  "",
		"24h": "11+10 12+0 18+5 19+0 20+0 23+2 24+0",
		"90m": "18+5 19+0 20+0 24+2",
		"30m": "19+0 20+0 24+2",
		now.Add(-time.Hour).Format(time.RFC3339Nano):   "18+5 19+0 20+0 24+2",
		now.Add(-time.Minute).Format(time.RFC3339Nano): "19+0 20+0 24+2",
		now.Add(time.Minute).Format(time.RFC3339):      "",
	} {
		var q EventQuery
		if err := q.ParseSince(since); err != nil {
			t.Fatal(err)
		}
		var got []string
		err := c.Events(t.Context(), q, func(e Event) error {
			got = append(got, fmt.Sprintf("%d+%d", e.Seq, e.Lost))
			return nil
		})
		if all := strings.Join(got, " "); err != nil || all != want {
			t.Errorf("since %s: %s, %v; want %s (number+lost)", since, all, err, want)
		}
	}
}

// Each event is sent at once, one JSON object a line, and the client's end ends
// the subscription.
func TestEventsFollow(t *testing.T) {
	labtest.Root(t)
	events := &journal{}
	socket := serve(t, NewAdmin(&fixed{names: []string{"a"}}, events, unreached(t), quiet()), AdminSocket, 0o600)
	c := dial(t, socket)
	_ = c.SetDeadline(time.Now().Add(slack))
	fmt.Fprint(c, "GET /v1/events?follow=1&policy=a HTTP/1.1\r\nHost: x\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if ct := resp.Header.Get("Content-Type"); resp.StatusCode != 200 || ct != "application/x-ndjson" {
		t.Errorf("status %d, content type %q", resp.StatusCode, ct)
	}
	lines := bufio.NewReader(resp.Body)
	for i := range 3 {
		events.add(entry("b", 1, "10.91.2.1:80"), entry("a", 1, "10.91.2.1:80"))
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		var e Event
		if err := json.Unmarshal([]byte(line), &e); err != nil || e.Seq != uint64(2*i+2) || e.Schema != 1 {
			t.Errorf("line %q: %v, want event %d", line, err, 2*i+2)
		}
	}
	if n := serving(); n != 1 {
		t.Errorf("%d streams are being served, want 1", n)
	}
	c.Close()
	waitFor(t, "the stream to end", func() bool { return serving() == 0 })
}

// serving counts the streams that are being served in this process. No test with one
// runs beside another.
func serving() int {
	buf := make([]byte, 1<<20)
	return strings.Count(string(buf[:runtime.Stack(buf, true)]), "(*admin).tell(")
}

func TestEventsClient(t *testing.T) {
	labtest.Root(t)
	events := &journal{}
	events.add(filterable()...)
	s := NewAdmin(&fixed{}, events, unreached(t), quiet())
	c := Dial(filepath.Dir(serve(t, s, AdminSocket, 0o600)))

	enough := errors.New("enough")
	n := 0
	err := c.Events(t.Context(), EventQuery{Follow: true}, func(Event) error {
		if n++; n == 2 {
			return enough
		}
		return nil
	})
	if err != enough || n != 2 {
		t.Errorf("%d events, %v; want 2 and the function's own error", n, err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	err = c.Events(ctx, EventQuery{Follow: true, Since: 4}, func(Event) error {
		cancel()
		return nil
	})
	if !errors.Is(err, context.Canceled) || errors.Is(err, ErrUnreachable) {
		t.Errorf("cancelled: %v", err)
	}

	done := make(chan error, 1)
	first := make(chan struct{})
	go func() {
		done <- c.Events(t.Context(), EventQuery{Follow: true, Since: 4}, func(Event) error {
			close(first)
			return nil
		})
	}()
	<-first
	if err := s.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, ErrUnreachable) || !strings.HasSuffix(err.Error(), "the agent has ended the stream") {
		t.Errorf("agent stops: %v", err)
	}
}

// A client that reads nothing holds up neither the agent nor its end, and is told
// how much it has lost once it reads again.
func TestEventsSlowReader(t *testing.T) {
	labtest.Root(t)
	events := &journal{}
	s := NewAdmin(&fixed{}, events, unreached(t), quiet())
	socket := serve(t, s, AdminSocket, 0o600)
	c := dial(t, socket)
	_ = c.SetDeadline(time.Now().Add(2 * slack))
	fmt.Fprint(c, "GET /v1/events?follow=1 HTTP/1.1\r\nHost: x\r\n\r\n")
	events.add(entry("a", 1, "10.91.2.1:80"))
	waitFor(t, "the stream", func() bool { return events.read(1) })
	const n = 20_000
	for range n - 1 {
		events.add(entry("a", 1, "10.91.2.1:80")) // never waits
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	dec := json.NewDecoder(resp.Body)
	var seen, lost, last uint64
	for last < n {
		var e Event
		if err := dec.Decode(&e); err != nil {
			t.Fatal(err)
		}
		seen, lost, last = seen+1, lost+e.Lost, e.Seq
	}
	if lost == 0 || seen+lost != n {
		t.Errorf("%d events and %d lost, want %d in all, and some lost", seen, lost, n)
	}

	stuck := dial(t, socket) // reads nothing at all, for good
	fmt.Fprintf(stuck, "GET /v1/events?follow=1&since=%d HTTP/1.1\r\nHost: x\r\n\r\n", n)
	waitFor(t, "the second stream", func() bool { return serving() == 2 })
	go func() { _, _ = io.Copy(io.Discard, resp.Body) }()
	for range n {
		events.add(entry("a", 1, "10.91.2.1:80"))
	}
	ctx, cancel := context.WithTimeout(t.Context(), slack)
	defer cancel()
	if err := s.Shutdown(ctx); err != nil {
		t.Errorf("shutdown beside a client that does not read: %v", err)
	}
}
