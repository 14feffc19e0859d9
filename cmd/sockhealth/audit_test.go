// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/agent"
	"github.com/sockhealth/sockhealth/internal/api"
	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/policy"
	"github.com/sockhealth/sockhealth/internal/prober"
	"github.com/sockhealth/sockhealth/internal/sockets"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

// script is what the looks at one made-up socket show: before the probe, and after
// it (nil: it is gone).
type script struct {
	before conn.Snapshot
	after  *conn.Snapshot
}

// scripted are sockets by their local port. It is all that an agent stands on.
type scripted struct {
	pol *policy.Policy
	by  map[uint16]script
}

func (w *scripted) InForce() *loader.InForce                      { return loader.NewInForce(w.pol, map[uint32]int{1: 0}) }
func (w *scripted) Counters() (map[string]loader.Counters, error) { return nil, nil }
func (w *scripted) Faults() ([]uint64, error)                     { return nil, nil }

func (w *scripted) Get(_ *netns.NS, local, _ netip.AddrPort) (conn.Snapshot, error) {
	s, ok := w.by[local.Port()]
	if !ok {
		return conn.Snapshot{}, sockets.ErrGone
	}
	s.before.Taken = conn.Now()
	return s.before, nil
}

func (w *scripted) Again(_ *netns.NS, id conn.ID) (conn.Snapshot, error) {
	s := w.by[id.Local.Port()].after
	if s == nil {
		return conn.Snapshot{}, sockets.ErrGone
	}
	after := *s
	after.Taken = conn.Now()
	return after, nil
}

func (w *scripted) Find(*netns.NS, netip.AddrPort, uint64) ([]conn.Snapshot, error) { return nil, nil }
func (w *scripted) Scan(*netns.NS, func(conn.Snapshot) error) error                 { return nil }
func (w *scripted) Provoke(_ *netns.NS, cookies []uint64) ([]uint64, error)         { return cookies, nil }
func (w *scripted) Calm(_ *netns.NS, cookies []uint64) ([]uint64, error)            { return cookies, nil }
func (w *scripted) Destroy(*netns.NS, conn.ID) error                                { return nil } // in vain
func (w *scripted) Send(*netns.NS, *conn.Snapshot) (prober.Sent, error) {
	return prober.Sent{Certain: true}, nil
}
func (w *scripted) Directions(*netns.NS) (func(*conn.ID) policy.Directions, error) {
	return func(*conn.ID) policy.Directions { return policy.Both }, nil
}

func (w *scripted) LocalLeg(*netns.NS, *conn.Snapshot) (bool, error) { return false, nil }
func (w *scripted) Ask(_ context.Context, _ *netns.NS, peer netip.AddrPort, _ *policy.AppProbe) prober.AppOutcome {
	return map[bool]prober.AppOutcome{true: prober.AppSilent, false: prober.AppAnswered}[peer.Port() == 7666]
}

// add makes a socket whose looks are a healthy idle one's but for what change does
// to the first and the last.
func (w *scripted) add(port, peer uint16, change func(before, after *conn.Snapshot)) {
	s := conn.Snapshot{
		ID: conn.ID{
			Netns: 1, Family: 2, Cookie: uint64(port), Local: netip.AddrPortFrom(netip.MustParseAddr("10.91.1.1"), port),
			Remote: netip.AddrPortFrom(netip.MustParseAddr("10.91.2.2"), peer),
		},
		State: conn.Established, HasRecord: true, DstDevUp: true, BytesReceived: 1000, BytesAcked: 501,
		SndUna: 1 << 31, SndNxt: 1 << 31, WriteSeq: 1 << 31, SndWnd: 65535, RcvNxt: 1 << 30, CopiedSeq: 1 << 30,
		DataAge: time.Minute, PacketAge: time.Minute, SendAge: time.Second, DataStamp: 1000, AckStamp: 1000,
		Options: conn.Options{KeepAlive: true}, Record: conn.Record{Policy: 1, Direction: conn.Outbound},
	}
	after := s
	change(&s, &after)
	w.by[port] = script{s, &after}
}

// scripts are sockets that lead to every verdict there is.
func scripts(t *testing.T) *scripted {
	t.Helper()
	pol, err := policy.Parse("scripted.yaml", []byte("version: 1\npeers: [{name: server, cidrs: [10.91.2.0/24], "+
		"probe: {window: 500ms, attempts: 1}, app_probe: {send: {data: PING}}}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	w := &scripted{pol: pol, by: make(map[uint16]script)}
	w.add(1, 7100, func(b, _ *conn.Snapshot) { b.DataAge, b.PacketAge = 0, 0 })                          // alive
	w.add(2, 7100, func(b, _ *conn.Snapshot) { b.DataAge, b.RcvNxt = 0, b.RcvNxt+5 })                    // local_unread
	w.add(3, 7100, func(_, a *conn.Snapshot) { a.AckStamp++ })                                           // alive_slow
	w.add(4, 7666, func(_, a *conn.Snapshot) { a.AckStamp++; a.SendAge = 0 })                            // alive_hung
	w.add(5, 7100, func(_, a *conn.Snapshot) { a.ProbesOut = 1 })                                        // dead_path
	w.add(6, 7100, func(b, _ *conn.Snapshot) { b.State = conn.CloseWait })                               // closed_by_peer
	w.add(7, 7100, func(_, a *conn.Snapshot) { a.DstDevUp = false })                                     // local_fault
	w.add(8, 7100, func(_, _ *conn.Snapshot) {})                                                         // unknown (unconfirmed)
	w.add(9, 7100, func(b, _ *conn.Snapshot) { b.HasRecord = false })                                    // unmanaged
	w.add(10, 7100, func(_, a *conn.Snapshot) { a.ProbesOut, a.Orphan, a.SndNxt = 1, true, a.SndNxt+9 }) // dead_path (orphan)
	w.by[11] = script{before: w.by[3].before}                                                            // gone while probed
	s := w.by[11]
	s.before.Local, s.before.Cookie = netip.AddrPortFrom(s.before.Local.Addr(), 11), 11
	w.by[11] = s
	return w // and 12 is not found
}

// served serves the events of a source on a run directory, which it returns.
func served(t *testing.T, events api.EventSource) string {
	t.Helper()
	dir, err := api.OpenRunDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	l, err := dir.Listen(api.AdminSocket, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	s := api.NewAdmin(nil, events, nil, slog.New(slog.DiscardHandler))
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
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
	return dir.Path()
}

// printed runs "sockhealth events" in this process.
func printed(t *testing.T, runDir string, args ...string) (stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	root := newRoot(&env{stdout: &out, stderr: &errs})
	root.SetArgs(append([]string{"events", "--run-dir", runDir}, args...))
	if err := root.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	return out.String(), errs.String()
}

// TestEventsDecideAgain: from each line that "events -o json" prints of a real
// agent's verdicts, the verdict can be decided again, and is the same; every verdict
// there is comes up.
func TestEventsDecideAgain(t *testing.T) {
	labtest.Root(t)
	w := scripts(t)
	a := agent.New(agent.Config{Kernel: w, Sockets: w, Prober: w, Apps: w, Now: conn.Now, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	defer a.Close()
	ns := labtest.Netns(t)
	var all sync.WaitGroup
	for port := uint16(1); port <= 12; port++ {
		s := w.by[port].before
		r := agent.Report{Caller: agent.Caller{NS: ns}, Local: s.Local, Peer: s.Remote, Sent: conn.Now() - 2*time.Second}
		if !s.Local.IsValid() {
			r.Local, r.Peer = netip.MustParseAddrPort("10.91.1.1:12"), netip.MustParseAddrPort("10.91.2.2:7100")
		}
		all.Go(func() {
			if _, err := a.Judge(t.Context(), r); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()

	stdout, _ := printed(t, served(t, a), "-o", "json")
	found := make(map[verdict.Word]int)
	for dec := json.NewDecoder(bytes.NewBufferString(stdout)); dec.More(); {
		var e api.Event
		if err := dec.Decode(&e); err != nil {
			t.Fatal(err)
		}
		in, err := e.Verdict.Basis.Input()
		if err != nil {
			t.Fatal(err)
		}
		v := verdict.Decide(in)
		if string(v.Word) != e.Verdict.Verdict || v.Reason != e.Verdict.Reason {
			t.Errorf("decided again: %s (%s); the line says %s (%s)", v.Word, v.Reason, e.Verdict.Verdict, e.Verdict.Reason)
		}
		if e.Verdict.Revision != w.pol.Revision || e.Verdict.Reporter != "call" {
			t.Errorf("revision %q, reporter %q", e.Verdict.Revision, e.Verdict.Reporter)
		}
		found[v.Word]++
	}
	for _, word := range verdict.Words() {
		if found[word] == 0 {
			t.Errorf("no %s among %v", word, found)
		}
	}
}
