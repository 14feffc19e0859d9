// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sockhealth/sockhealth/internal/agent"
	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/policy"
	"github.com/sockhealth/sockhealth/internal/verdict"
	"github.com/sockhealth/sockhealth/report"
)

// one is the ID of a socket as an operator names it.
func one() conn.ID {
	return conn.ID{
		Netns: 4026531840, Cookie: 71,
		Local: netip.MustParseAddrPort("10.1.1.1:40122"), Remote: netip.MustParseAddrPort("10.20.1.2:7100"),
	}
}

func TestExplainAndProbe(t *testing.T) {
	labtest.Root(t)
	a := &fixed{
		explain: Explanation{
			Socket: Socket{Local: "10.1.1.1:40122", Peer: "10.20.1.2:7100", Cookie: 71},
			Detail: Detail{Family: "ipv4", SendWindow: 65535},
			Rule:   &Rule{Name: "buffer", CIDR: "10.20.0.0/16", Ports: []string{"7100-7199"}, AppProbe: &AppProbe{Kind: "http"}},
			Figures: &Figures{
				IdleBoundMS: 15000, LostProbes: 4,
			},
		},
		probed: agent.Result{ID: one(), Policy: "buffer", Verdict: verdict.AliveSlow, Action: agent.ActionNone},
	}
	c := adminClient(t, a)
	for _, id := range []conn.ID{one(), {Cookie: 71}, {Local: netip.MustParseAddrPort("[fd91::1]:1"), Netns: 5}} {
		x, err := c.Explain(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		want := a.explain
		want.Schema = 1
		if d := cmp.Diff(&want, x); d != "" {
			t.Errorf("explanation (-want +got):\n%s", d)
		}
		if a.asked != id {
			t.Errorf("explain was asked about %+v, want %+v", a.asked, id)
		}
		a.asked = conn.ID{}
		p, err := c.Probe(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(&Probed{Schema: 1, Result: result(&a.probed)}, p); d != "" {
			t.Errorf("probe (-want +got):\n%s", d)
		}
		if a.asked != id {
			t.Errorf("probe was asked about %+v, want %+v", a.asked, id)
		}
	}
}

func TestSocketIDRefused(t *testing.T) {
	labtest.Root(t)
	socket := serve(t, newAdmin(t, &fixed{err: errors.New("asked")}), AdminSocket, 0o600)
	for query, want := range map[string]string{
		"":                               `no socket is named: give "local" (its own address and port) or "cookie" (SO_COOKIE)`,
		"?peer=10.1.1.1:1":               `no socket is named: give "local" (its own address and port) or "cookie" (SO_COOKIE)`,
		"?local=db:1":                    `query parameter "local" is "db:1", want an IP address and a port such as "10.20.1.2:7100" or "[fd00:20::2]:7100"; names are not resolved`,
		"?cookie=0":                      `query parameter "cookie" is 0, want a whole number from 1 to 18446744073709551615: the socket's SO_COOKIE`,
		"?cookie=x":                      `query parameter "cookie" is x, want a whole number from 1 to 18446744073709551615: the socket's SO_COOKIE`,
		"?cookie=1&netns=-1":             `query parameter "netns" is "-1", want a namespace's inode number, as in /proc/PID/ns/net`,
		"?local=10.1.1.1:1&peer=[::2]:2": `"local" and "peer" are of different address families: 10.1.1.1:1 and [::2]:2`,
		"?cookie=1&cookie=2":             `query parameter "cookie" is given twice`,
		"?uid=1":                         `unknown query parameter "uid": /v1/sockets/explain takes local, peer, cookie and netns`,
	} {
		resp, got := exchange(t, socket, "GET /v1/sockets/explain"+query+" HTTP/1.1\r\nHost: x\r\n\r\n")
		if resp.StatusCode != 400 || got != errorBody(want) {
			t.Errorf("%s: status %d, body %s, want %s", query, resp.StatusCode, got, want)
		}
	}
	for body, want := range map[string]string{
		"":                                    `the body is empty, want a JSON object such as {"local": "10.1.1.1:40122", "peer": "10.20.1.2:7100"}`,
		`{"peer": "10.1.1.1:1"}`:              `no socket is named: give "local" (its own address and port) or "cookie" (SO_COOKIE)`,
		`{"local": 1}`:                        `field "local" is 1, want an IP address and a port such as "10.20.1.2:7100" or "[fd00:20::2]:7100"`,
		`{"cookie": 1, "netns": "x"}`:         `field "netns" is a string, want a namespace's inode number, as in /proc/PID/ns/net`,
		`{"cookie": 1, "netns": 4294967296}`:  `field "netns" is "4294967296", want a namespace's inode number, as in /proc/PID/ns/net`,
		`{"cookie": 1, "elapsed_ms": 3}`:      `unknown field "elapsed_ms": the fields are local, peer, cookie and netns`,
		`{"cookie": 1, "cookie": 2}`:          `field "cookie" is given twice`,
		`{"cookie": 1, "local": "1.1.1.1:0"}`: `field "local" is "1.1.1.1:0": a port is 1 to 65535`,
	} {
		resp, got := exchange(t, socket, post("/v1/sockets/probe", body))
		if resp.StatusCode != 400 || got != errorBody(want) {
			t.Errorf("%s: status %d, body %s, want %s", body, resp.StatusCode, got, want)
		}
	}
}

// The errors of the questions, as the client of the command line has them.
func TestAdminErrors(t *testing.T) {
	labtest.Root(t)
	a := &fixed{}
	s := newAdmin(t, a)
	socket := serve(t, s, AdminSocket, 0o600)
	c := Dial(filepath.Dir(socket))
	for _, tc := range []struct {
		err    error
		is     error
		status int
		want   string
	}{
		{fmt.Errorf("find %s: %w", "x", ErrNoSocket), ErrNoSocket, 404, "find x: no such socket"},
		{fmt.Errorf("find x: %w [name its netns]", ErrAmbiguous), ErrAmbiguous, 409, "find x: several such sockets [name its netns]"},
		{fmt.Errorf("probe x: %w", agent.ErrForbidden), ErrPermission, 403, "permission denied: probe x: network namespace not covered by this agent [start it with --netns all, or with that namespace among its paths]"},
		{fmt.Errorf("probe x: %w", agent.ErrBusy), nil, 503, "refused with status 503: probe x: too many judgements under way"},
		{errors.New("out of luck"), nil, 500, "refused with status 500: out of luck"},
	} {
		a.err = tc.err
		_, explain := c.Explain(t.Context(), one())
		_, probe := c.Probe(t.Context(), one())
		for path, err := range map[string]error{explainPath: explain, probePath: probe} {
			if want := "ask agent at " + socket + " for " + path + ": " + tc.want; err == nil || err.Error() != want {
				t.Errorf("got %v, want %s", err, want)
			}
			if tc.is != nil && !errors.Is(err, tc.is) {
				t.Errorf("%v does not wrap %v", err, tc.is)
			}
		}
		if resp, _ := exchange(t, socket, post(probePath, `{"cookie": 1}`)); resp.StatusCode != tc.status {
			t.Errorf("%v: status %d, want %d", tc.err, resp.StatusCode, tc.status)
		}
	}
}

func TestReload(t *testing.T) {
	labtest.Root(t)
	a := &fixed{file: PolicyFile{File: "/p.yaml", Revision: "abc", Loaded: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}}
	socket := serve(t, newAdmin(t, a), AdminSocket, 0o600)
	c := Dial(filepath.Dir(socket))
	got, err := c.Reload(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(&Reloaded{Schema: 1, PolicyFile: a.file}, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}

	_, wrong := policy.Parse("/p.yaml", []byte("version: 1\nlimit: 3\npeers:\n  - name: x\n    cidrs: [10.0.0.0/33]\n"))
	all := wrong.(*policy.Errors)
	if len(all.List) < 2 {
		t.Fatalf("want several mistakes, got %v", wrong)
	}
	a.err = fmt.Errorf("reload: %w", wrong)
	resp, body := exchange(t, socket, post("/v1/reload", ""))
	var r Refused
	if err := json.Unmarshal([]byte(body), &r); err != nil || resp.StatusCode != 422 || len(r.Errors) != len(all.List) {
		t.Errorf("status %d, body %s", resp.StatusCode, body)
	}
	want := fmt.Sprintf("the policy file is refused, and the policy in force stays: %v (and %d more)", all.List[0], len(all.List)-1)
	if r.Error != want {
		t.Errorf("error %q, want %q", r.Error, want)
	}
	_, err = c.Reload(t.Context())
	var told *policy.Errors
	if !errors.As(err, &told) || told.Error() != wrong.Error() {
		t.Errorf("client: %v, want it to wrap\n%v", err, wrong)
	}

	_, a.err = policy.Load("/nonexistent/policy.yaml")
	resp, body = exchange(t, socket, post("/v1/reload", ""))
	wantBody := `{"error":"the policy file is refused, and the policy in force stays: read policy: open /nonexistent/policy.yaml: no such file or directory",` +
		`"errors":[{"file":"","line":0,"column":0,"message":"read policy: open /nonexistent/policy.yaml: no such file or directory"}]}` + "\n"
	if resp.StatusCode != 422 || body != wantBody {
		t.Errorf("no file: status %d, body %s", resp.StatusCode, body)
	}
	a.err = errors.New("swap policy: no memory")
	if resp, body = exchange(t, socket, post("/v1/reload", "")); resp.StatusCode != 500 || body != errorBody("swap policy: no memory") {
		t.Errorf("agent's fault: status %d, body %s", resp.StatusCode, body)
	}
}

// Root reports on the admin socket about every socket of its namespace, the
// host's too, and as often as it likes.
func TestReportsOnAdmin(t *testing.T) {
	labtest.Root(t)
	asked := make(chan seen, 1)
	socket := serve(t, NewAdmin(&fixed{}, &journal{}, watch(asked, nil, nil), quiet()), AdminSocket, 0o600)
	c := dial(t, socket)
	for range reportsAtOnce + 50 {
		resp, body := talk(t, c, post("/v1/reports", exampleReport))
		if resp.StatusCode != 200 || body != "{\"results\":[]}\n" {
			t.Fatalf("status %d, body %s", resp.StatusCode, body)
		}
		if got := <-asked; !got.Caller.Owner || got.Caller.UID != 0 {
			t.Fatalf("owner %v, user %d", got.Caller.Owner, got.Caller.UID)
		}
	}
	id := submit(t, socket)
	<-asked
	client := &report.Client{Socket: socket}
	if resp, err := client.Result(t.Context(), id); err != nil || len(resp.Results) != 0 {
		t.Errorf("got %+v, %v", resp, err)
	}
}

func TestNewDetailAndRule(t *testing.T) {
	s := conn.Snapshot{
		ID: conn.ID{Family: 10, Ifindex: 3, Remote: netip.MustParseAddrPort("10.20.1.2:7100")}, Mark: 4, DstDev: 5, DstDevUp: true,
		WriteSeq: 12, SndUna: 5, SndWnd: 6, RcvWnd: 8, SRTT: 1500 * time.Microsecond, Timestamps: true, MPTCP: true, MD5OrAO: true, Repair: true,
		HasRecord: true, Record: conn.Record{Effective: conn.Options{Count: 5}},
	}
	want := Detail{
		Family: "ipv4_mapped", Ifindex: 3, Mark: 4, LeavesBy: 5, LinkUp: true, Unacked: 7, SendWindow: 6, ReceiveWindow: 8,
		SRTTUS: 1500, Timestamps: true, MPTCP: true, MD5OrAO: true, Repair: true, Recorded: true, Effective: SocketOptions{Count: 5},
	}
	if d := cmp.Diff(want, NewDetail(&s)); d != "" {
		t.Errorf("detail (-want +got):\n%s", d)
	}
	s.Family = 2
	if got := NewDetail(&s).Family; got != "ipv4" {
		t.Errorf("family %s", got)
	}
	s.Family, s.Remote = 10, netip.MustParseAddrPort("[fd91::1]:1")
	if got := NewDetail(&s).Family; got != "ipv6" {
		t.Errorf("family %s", got)
	}

	p := policy.Peer{
		Name: "buffer", Line: 4, Directions: policy.Both, Ports: []policy.PortRange{{Lo: 7100, Hi: 7199}, {Lo: 9, Hi: 9}},
		CIDRs:   []policy.CIDR{{Prefix: netip.MustParsePrefix("10.0.0.0/8")}, {Prefix: netip.MustParsePrefix("10.20.0.0/16")}, {Prefix: netip.MustParsePrefix("10.30.0.0/24")}},
		Options: conn.Options{KeepAlive: true, Idle: 5 * time.Second}, Probe: policy.Probe{Window: 3 * time.Second, Attempts: 5},
		Observe: true, CloseSilentAfter: time.Minute, Silence: 30 * time.Second,
		AppProbe: &policy.AppProbe{Kind: policy.AppHTTP, Port: 7101, Timeout: 10 * time.Second, CloseHung: true},
	}
	wantRule := Rule{
		Name: "buffer", File: "p.yaml", Line: 4, CIDR: "10.20.0.0/16", Ports: []string{"7100-7199", "9"}, Directions: "both",
		Options: SocketOptions{KeepAlive: true, IdleS: 5}, WindowMS: 3000, Attempts: 5, Observe: true, CloseSilentAfterMS: 60000, SilenceMS: 30000,
		AppProbe: &AppProbe{Kind: "http", Port: 7101, TimeoutMS: 10000, CloseHung: true},
	}
	if d := cmp.Diff(wantRule, NewRule(&p, "p.yaml", netip.MustParseAddr("10.20.1.2"))); d != "" {
		t.Errorf("rule (-want +got):\n%s", d)
	}
	f := policy.Figures{
		IdleBound: 1e6, IdleBoundLatest: 2e6, InFlightBound: 3e6, InFlightBoundLatest: 4e6, LostProbes: 5, SurvivesIdle: 6e6,
		SurvivesIdleFresh: 7e6, SurvivesInFlight: 8e6, SurvivesInFlightNear: 9e6, ReportBound: 10e6, SurvivesReport: 11e6,
		SilenceBound: 12e6, SilenceLater: 13e6,
	}
	if d := cmp.Diff(Figures{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}, NewFigures(&f)); d != "" {
		t.Errorf("figures (-want +got):\n%s", d)
	}
}
