// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/netip"
	"os"
	"path/filepath"
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
)

// kept is an EventSource of entries, numbered from 7 on. Those of no kind are lost.
type kept []agent.Entry

func (k kept) After(since uint64) (e agent.Entry, last uint64, more <-chan struct{}) {
	const first = 7
	last = first + uint64(len(k)) - 1
	for i, e := range k {
		if e.Seq = first + uint64(i); e.Seq > since && e.Kind != "" {
			return e, last, nil
		}
	}
	return agent.Entry{}, last, nil
}

// story are entries of every kind.
func story(at time.Time) kept {
	id := conn.ID{Netns: 4026532281, Cookie: 71, Local: netip.MustParseAddrPort("10.1.1.1:40122"), Remote: netip.MustParseAddrPort("10.20.1.2:7100")}
	in := verdict.Input{
		Sent: 98 * time.Second, CloseHung: true, SilentLimit: time.Minute,
		Before: verdict.Look{Found: true, Snapshot: conn.Snapshot{
			ID: id, Taken: 100*time.Second - 40*time.Microsecond, State: conn.Established, HasRecord: true, Record: conn.Record{Direction: conn.Outbound},
			BytesReceived: 1000, BytesAcked: 501, SndUna: 5000, SndNxt: 5100, WriteSeq: 5120, DstDevUp: true,
			DataAge: 4 * time.Second, PacketAge: 2500 * time.Millisecond, SendAge: 1800 * time.Millisecond, DataStamp: 17, AckStamp: 29, Retransmits: 2,
		}},
		Probe: verdict.Probe{Done: true, Sent: 3, Wanted: 2, Window: time.Second},
	}
	in.After = in.Before
	in.After.Snapshot.Taken, in.After.Snapshot.Retransmits = 101*time.Second, 3
	dead := &agent.Result{
		ID: id, Policy: "buffer", Revision: "2f3d13fbf1c5", Verdict: verdict.DeadPath, Action: agent.ActionClosed,
		Evidence: in.Evidence(), Delivery: verdict.Unacknowledged, Basis: in.Basis(100 * time.Second), Duration: 1012 * time.Millisecond,
		Attempts: []agent.Attempt{{AtMS: 0, Kind: "segment", Result: "sent"}, {AtMS: 310, Kind: "own_retransmission", Result: "sent"}, {AtMS: 600, Kind: "segment", Result: "sent"}},
	}
	gone := in
	gone.After = verdict.Look{Ended: verdict.EndReset}
	reset := &agent.Result{
		ID: id, Policy: "buffer", Revision: "2f3d13fbf1c5", Verdict: verdict.ClosedByPeer, Action: agent.ActionNone,
		Evidence: gone.Evidence(), Basis: gone.Basis(100 * time.Second), Attempts: dead.Attempts[:1],
	}
	busy := &agent.Result{ID: id, Verdict: verdict.Unknown, Reason: verdict.ReasonBusy, Action: agent.ActionNone}
	end := &loader.Event{ID: id, Cause: loader.CauseInFlight, Errno: syscall.ETIMEDOUT, Direction: conn.Outbound, BytesReceived: 1000, BytesAcked: 500, Retransmits: 6}
	where := container.ID{Container: "4f5e6d7c8b9a01234f5e6d7c8b9a0123", Pod: "0b1c2d3e-4f50-6172-8394-a5b6c7d8e9f0"}
	entries := kept{
		{Kind: agent.EntryVerdict, Policy: "buffer", Result: dead, Reporter: "call", UID: 1000, PID: 4711, Container: where},
		{}, {}, // lost
		{Kind: agent.EntryVerdict, Policy: "buffer", Result: reset, Reporter: "sweep"},
		{Kind: agent.EntryVerdict, Result: busy, Reporter: "call", UID: 1000, PID: 4711},
		{Kind: agent.EntryEnd, Policy: "buffer", Event: end, Container: where},
		{Kind: agent.EntryStall, Policy: "buffer", Event: end},
	}
	for i := range entries {
		entries[i].Time, entries[i].ID = at.Add(time.Duration(i)*time.Second), id
	}
	return entries
}

// TestEventsGolden: what each output of events looks like.
func TestEventsGolden(t *testing.T) {
	labtest.Root(t)
	at := time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.Local)
	dir := served(t, story(at))
	for _, output := range []string{table, wide, asJSON} {
		stdout, stderr := printed(t, dir, "-o", output)
		stdout = strings.ReplaceAll(stdout, at.Format("Z07:00"), "Z")
		golden(t, "events."+output, stdout)
		if want := "sockhealth: 2 events between these are not kept any more\n"; stderr != want {
			t.Errorf("-o %s: stderr %q, want %q", output, stderr, want)
		}
	}
}

// golden compares with a file of testdata. SOCKHEALTH_UPDATE=1 writes it.
func golden(t *testing.T, name, got string) {
	t.Helper()
	name = filepath.Join("testdata", name)
	if os.Getenv("SOCKHEALTH_UPDATE") == "1" {
		if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s (-want +got):\n%s", name, d)
	}
}
