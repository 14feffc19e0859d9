// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sockhealth/sockhealth/internal/agent"
	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/container"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
)

// fixed is an Admin that always says the same.
type fixed struct {
	status  Status
	sockets []Socket
	not     []UnmanagedSocket
	policy  Policy
	names   []string
	explain Explanation
	probed  agent.Result
	file    PolicyFile
	err     error
	asked   conn.ID // by Explain or Probe
}

func (f *fixed) Explain(_ context.Context, id conn.ID) (Explanation, error) {
	f.asked = id
	return f.explain, f.err
}

func (f *fixed) Probe(_ context.Context, id conn.ID) (agent.Result, error) {
	f.asked = id
	return f.probed, f.err
}

func (f *fixed) Reload(context.Context) (PolicyFile, error) { return f.file, f.err }

// newAdmin is NewAdmin without events and reports.
func newAdmin(t *testing.T, a Admin) *Server {
	return NewAdmin(a, &journal{}, unreached(t), quiet())
}

func (f *fixed) Status(context.Context) (Status, error)               { return f.status, f.err }
func (f *fixed) Sockets(context.Context) ([]Socket, error)            { return f.sockets, f.err }
func (f *fixed) Unmanaged(context.Context) ([]UnmanagedSocket, error) { return f.not, f.err }
func (f *fixed) Policies() []string                                   { return f.names }
func (f *fixed) Policy(context.Context) (Policy, error)               { return f.policy, f.err }

func adminClient(t *testing.T, a Admin) *Client {
	return Dial(filepath.Dir(serve(t, newAdmin(t, a), AdminSocket, 0o600)))
}

func TestAdminRoundTrip(t *testing.T) {
	labtest.Root(t)
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	file := PolicyFile{File: "/etc/sockhealth/policy.yaml", Loaded: began}
	a := &fixed{
		status: Status{
			Problems: []string{}, Version: "0.1.0", PID: 7, Started: began, Kernel: "6.18", Cgroup: "/sys/fs/cgroup",
			Netns: []string{"all"}, Programs: []string{"sockops"}, Policy: file,
			Peers: []PolicyStatus{{Name: "buffer", Opened: 2, Closed: 1,
				Stale: map[string]uint64{"dead_path": 1}, Verdicts: map[string]uint64{"alive": 3}}},
			Faults: map[string]uint64{"storage": 1}, EventsDropped: 4,
		},
		sockets: []Socket{{Local: "10.1.1.1:1", Peer: "10.1.1.2:2", Cookie: 71, Policy: "buffer", Options: SocketOptions{KeepAlive: true, IdleS: 5}}},
		policy:  Policy{PolicyFile: file, Text: "version: 1\n"},
	}
	c := adminClient(t, a)

	s, err := c.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := a.status
	want.Schema, want.Health = 1, "ok"
	if d := cmp.Diff(&want, s); d != "" {
		t.Errorf("status (-want +got):\n%s", d)
	}
	for _, incomplete := range []string{"", "netns 7: gone"} {
		a.not = []UnmanagedSocket{{Local: "10.1.1.1:1", Peer: "10.1.1.2:2", Cookie: 71, Policy: "buffer", Reason: "older", Uncertain: true}}
		if incomplete != "" {
			a.err = errors.New(incomplete)
		}
		l, listErr := c.Sockets(t.Context())
		u, err := c.Unmanaged(t.Context())
		a.err = nil
		if err := errors.Join(err, listErr); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(&Sockets{Schema: 1, Sockets: a.sockets, Incomplete: incomplete}, l); d != "" {
			t.Errorf("sockets (-want +got):\n%s", d)
		}
		if d := cmp.Diff(&Unmanaged{Schema: 1, Sockets: a.not, Incomplete: incomplete}, u); d != "" {
			t.Errorf("unmanaged (-want +got):\n%s", d)
		}
	}
	p, err := c.Policy(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(&Policy{Schema: 1, PolicyFile: file, Text: "version: 1\n"}, p); d != "" {
		t.Errorf("policy (-want +got):\n%s", d)
	}
}

// The status never looks better than the truth, and its lists are lists.
func TestStatusHealth(t *testing.T) {
	for _, tc := range []struct {
		status Status
		want   string
	}{
		{Status{}, "ok"},
		{Status{Problems: []string{"events are not read"}}, "degraded"},
		{Status{Policy: PolicyFile{Error: "policy.yaml:3:1: unknown key"}}, "degraded"},
		{Status{Health: "ok", Problems: []string{"x"}}, "degraded"},
	} {
		h := &admin{of: &fixed{status: tc.status}}
		got, err := h.status(t.Context())
		if err != nil || got.(Status).Health != tc.want {
			t.Errorf("%+v: got %+v, %v", tc.status, got, err)
		}
		b, _ := json.Marshal(got)
		for _, list := range []string{`"problems":[`, `"programs":[`, `"netns":[`, `"peers":[`} {
			if !strings.Contains(string(b), list) {
				t.Errorf("%s is no list in %s", list, b)
			}
		}
	}
}

func TestAdminRefused(t *testing.T) {
	labtest.Root(t)
	socket := serve(t, newAdmin(t, &fixed{}), AdminSocket, 0o666) // a mode by mistake
	for _, tc := range []struct {
		raw    string
		status int
		want   string
	}{
		{"POST /v1/status HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", 405, "POST is not allowed on /v1/status: use GET"},
		{"GET /v1/report HTTP/1.1\r\nHost: x\r\n\r\n", 404, `no such path "/v1/report": there are GET /v1/status, /v1/sockets, /v1/sockets/explain, /v1/sockets/unmanaged, /v1/policy and /v1/events, POST /v1/sockets/probe and /v1/reload, and the paths of the report socket`},
		{"GET /v1/reload HTTP/1.1\r\nHost: x\r\n\r\n", 405, "GET is not allowed on /v1/reload: use POST"},
		{"POST /v1/sockets/explain HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", 405, "POST is not allowed on /v1/sockets/explain: use GET"},
		{"GET /v1/sockets/probe HTTP/1.1\r\nHost: x\r\n\r\n", 405, "GET is not allowed on /v1/sockets/probe: use POST"},
		{"DELETE /v1/events HTTP/1.1\r\nHost: x\r\n\r\n", 405, "DELETE is not allowed on /v1/events: use GET"},
		{"POST /v1/reload?force=1 HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", 400, `unknown query parameter "force": /v1/reload takes none`},
		{"GET /v1/sockets?peer=x HTTP/1.1\r\nHost: x\r\n\r\n", 400, `unknown query parameter "peer": /v1/sockets takes none`},
	} {
		resp, got := exchange(t, socket, tc.raw)
		if resp.StatusCode != tc.status || got != errorBody(tc.want) {
			t.Errorf("status %d, body %s, want %d, %s", resp.StatusCode, got, tc.status, tc.want)
		}
	}
	var c net.Conn
	asUser(t, 12345, func() { c = dial(t, socket) })
	resp, got := talk(t, c, "GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n")
	if resp.StatusCode != 403 || got != errorBody("the admin socket is for root, you are user 12345 [run as root]") {
		t.Errorf("another user: status %d, body %s", resp.StatusCode, got)
	}
}

func TestAdminClientErrors(t *testing.T) {
	labtest.Root(t)
	failing := adminClient(t, &fixed{err: errors.New("read counters: bad file descriptor")})
	_, err := failing.Sockets(t.Context())
	if err == nil || !strings.HasSuffix(err.Error(), "refused with status 500: read counters: bad file descriptor") {
		t.Errorf("got %v", err)
	}

	dir := tempDir(t)
	nobody := filepath.Join(dir, AdminSocket)
	_, err = Dial(dir).Status(t.Context())
	want := "ask agent at " + nobody + " for /v1/status: agent unreachable: nobody listens [is sockhealth run started, with this --run-dir?]"
	if !errors.Is(err, ErrUnreachable) || err.Error() != want {
		t.Errorf("no socket: %v, want %s", err, want)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: nobody, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	if _, err = Dial(dir).Status(t.Context()); !errors.Is(err, ErrUnreachable) {
		t.Errorf("nobody listens: %v", err)
	}

	socket := serve(t, newAdmin(t, &fixed{}), AdminSocket, 0o600)
	asUser(t, 12345, func() { _, err = dialFrom(filepath.Dir(socket)).Status(t.Context()) })
	if !errors.Is(err, ErrPermission) || errors.Is(err, ErrUnreachable) {
		t.Errorf("another user: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err = Dial(filepath.Dir(socket)).Status(ctx); !errors.Is(err, context.Canceled) || errors.Is(err, ErrUnreachable) {
		t.Errorf("cancelled: %v", err)
	}
}

// dialFrom is Dial on the calling thread: net/http dials in another goroutine.
func dialFrom(runDir string) *Client {
	c := Dial(runDir)
	conn, err := net.Dial("unix", c.socket)
	c.http.DialContext = func(context.Context, string, string) (net.Conn, error) { return conn, err }
	return c
}

func TestAdminClientSchema(t *testing.T) {
	for body, want := range map[string]string{
		`{"schema": 2}`: "answer has schema 2, this command knows 1 [use the agent's own version]",
		`{}`:            "answer has schema 0, this command knows 1 [use the agent's own version]",
		`[]`:            "decode answer: json: cannot unmarshal array into Go value of type api.versioned",
		`{"schema": 1, "sockets": [{"local": 1}]}`: "decode answer: json: cannot unmarshal number into Go struct field Socket.sockets.local of type string",
	} {
		resp := &http.Response{Body: io.NopCloser(strings.NewReader(body))}
		if err := decodeSchema(resp, new(Sockets)); err == nil || err.Error() != want {
			t.Errorf("%s: got %v, want %s", body, err, want)
		}
	}
}

func TestNewSocket(t *testing.T) {
	snap := conn.Snapshot{
		ID: conn.ID{
			Netns: 4026531840, Family: 10, Cookie: 71,
			Local: netip.MustParseAddrPort("[fd91::1]:1"), Remote: netip.MustParseAddrPort("[fd91::2]:2"),
		},
		State: conn.CloseWait, UID: 1000, BytesReceived: 101, BytesAcked: 7, RcvNxt: 12, CopiedSeq: 1,
		WriteSeq: 5, SndUna: 4, DataAge: 1500 * time.Millisecond, PacketAge: 20 * time.Millisecond, Retransmits: 2, ProbesOut: 3,
		Options: conn.Options{KeepAlive: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 5, UserTimeout: 15 * time.Second},
		Record: conn.Record{
			Direction: conn.Inbound,
			Policed:   conn.Options{UserTimeout: 16 * time.Second}, App: conn.Options{Idle: 7 * time.Second},
		},
		HasRecord: true,
	}
	want := Socket{
		Local: "[fd91::1]:1", Peer: "[fd91::2]:2", Cookie: 71, Netns: 4026531840, UID: 1000,
		ContainerID: "c0ffee", PodUID: "a-pod",
		Policy: "buffer", Direction: "inbound", State: "close_wait",
		BytesReceived: 100, BytesAcked: 7, Unread: 10, InFlight: true, // the FIN is no payload
		LastDataMS: 1500, LastPacketMS: 20, Retransmits: 2, ProbesOut: 3,
		Options: SocketOptions{KeepAlive: true, IdleS: 5, IntervalS: 2, Count: 5, UserTimeoutMS: 15000},
		Policed: SocketOptions{UserTimeoutMS: 16000}, App: SocketOptions{IdleS: 7},
	}
	if d := cmp.Diff(want, NewSocket(&snap, "buffer", container.ID{Container: "c0ffee", Pod: "a-pod"})); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
