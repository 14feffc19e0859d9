// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sockhealth/sockhealth/internal/policy"
	"github.com/sockhealth/sockhealth/internal/prober"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

// DecidedAgain: every record of the test's agent leads to the verdict that it tells.
// The tests with a made-up world all end here, and those with real sockets.
func DecidedAgain(t *testing.T, a *Agent) {
	t.Helper()
	for _, e := range Entries(a, 0) {
		if e.Result == nil || e.Result.Basis == nil {
			continue
		}
		b, err := json.Marshal(e.Result.Basis)
		if err != nil {
			t.Fatal(err)
		}
		var basis verdict.Basis
		if err := json.Unmarshal(b, &basis); err != nil {
			t.Fatal(err)
		}
		in, err := basis.Input()
		if err != nil {
			t.Fatal(err)
		}
		v := verdict.Decide(in)
		if v.Word != e.Result.Verdict || v.Reason != e.Result.Reason {
			t.Errorf("from the record of #%d comes %s (%s), it tells %s (%s): %s", e.Seq, v.Word, v.Reason, e.Result.Verdict, e.Result.Reason, b)
		}
		if done := e.Result.Action != ActionNone; done && !v.Close {
			t.Errorf("%s, although the record of #%d does not condemn", e.Result.Action, e.Seq)
		}
	}
}

// TestAttempts: the record has each probe with its time, kind and what became of
// sending it, those of the kernel's own that show in its counters among them.
func TestAttempts(t *testing.T) {
	bubble(t, "idle and silent", func(t *testing.T, w *world, a *Agent) {
		r := judgeOne(t, a, w.report(w.add(1, 10*time.Second, nil), 2*time.Second))
		want := []Attempt{
			{0, probeKeepalive, attemptSent}, {650, probeKeepalive, attemptSent}, {1300, probeKeepalive, attemptSent},
			{1950, probeKeepalive, attemptSent}, {2600, probeKeepalive, attemptSent}, {2600, probeSegment, attemptSent},
		}
		if d := cmp.Diff(want, r.Attempts); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
		sent := 0
		for _, at := range r.Attempts {
			if at.Result == attemptSent {
				sent++
			}
		}
		if sent != r.Evidence.ProbesSent {
			t.Errorf("%d sent, the evidence has %d", sent, r.Evidence.ProbesSent)
		}
	})
	bubble(t, "answered", func(t *testing.T, w *world, a *Agent) {
		r := judgeOne(t, a, w.report(w.add(1, 10*time.Second, answers), 0))
		if d := cmp.Diff([]Attempt{{0, probeKeepalive, attemptAsked}}, r.Attempts); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
	})
	bubble(t, "in flight", func(t *testing.T, w *world, a *Agent) {
		id := w.add(1, 10*time.Second, nil)
		w.sockets[1].snap.WriteSeq = 7
		time.AfterFunc(100*time.Millisecond, func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.sockets[1].snap.ProbesOut++
		})
		r := judgeOne(t, a, w.report(id, 0))
		if len(r.Attempts) < 4 {
			t.Fatalf("attempts %+v", r.Attempts)
		}
		want := []Attempt{{0, probeSegment, attemptSent}, {5, ownRetransmission, attemptSent}, {155, ownWindowProbe, attemptSent}, {650, probeSegment, attemptSent}}
		if d := cmp.Diff(want, r.Attempts[:4]); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
	})
	bubble(t, "its own keepalive", func(t *testing.T, w *world, a *Agent) {
		id := w.add(1, 4*time.Second, nil)
		w.sockets[1].snap.Options.Idle = 5 * time.Second
		w.ownKeepalive(1, time.Second, 0)
		r := judgeOne(t, a, w.report(id, 0))
		if n := len(r.Attempts); n != 6 || r.Attempts[2].Kind != ownKeepalive || r.Attempts[2].AtMS < 1000 || r.Attempts[2].AtMS > 1160 {
			t.Errorf("attempts %+v", r.Attempts)
		}
	})
}

// TestAttemptsRefused: what did not leave stands there, too.
func TestAttemptsRefused(t *testing.T) {
	for err, want := range map[error]AttemptResult{
		prober.ErrBlocked: attemptBlocked, prober.ErrNoRoute: attemptNoRoute, errors.New("odd"): attemptError,
	} {
		bubble(t, string(want), func(t *testing.T, w *world, a *Agent) {
			w.sendErr = err
			id := w.add(1, 10*time.Second, nil)
			w.sockets[1].snap.WriteSeq = 7
			r := judgeOne(t, a, w.report(id, 0))
			for i, at := range r.Attempts {
				if at != (Attempt{int64(650 * i), probeSegment, want}) {
					t.Errorf("attempt %d: %+v", i, at)
				}
			}
			if len(r.Attempts) != 5 {
				t.Errorf("%d attempts, want 5", len(r.Attempts))
			}
		})
	}
}

// TestJoinedRecord: the record of a report that joins tells of the probes before it,
// and of its own call's request, which the first look has not seen.
func TestJoinedRecord(t *testing.T) {
	bubble(t, "joined", func(t *testing.T, w *world, a *Agent) {
		id := w.add(1, 10*time.Second, nil)
		s := w.sockets[1]
		s.wrote = w.now() - 10*time.Second
		first := make(chan Result, 1)
		go func() { first <- judgeOne(t, a, w.report(id, 0)) }()
		time.Sleep(time.Second)
		w.mu.Lock()
		s.snap.WriteSeq, s.snap.SndNxt, s.wrote = 100, 100, w.now() // the second call
		w.mu.Unlock()
		time.Sleep(100 * time.Millisecond)
		second := judgeOne(t, a, w.report(id, 100*time.Millisecond))
		if r := <-first; r.Delivery != verdict.NoRequest || r.Attempts[0].AtMS != 0 || r.Basis.Before.TakenNS != 0 {
			t.Errorf("the first: %q, %+v, %+v", r.Delivery, r.Attempts, r.Basis)
		}
		if second.Delivery != verdict.Unacknowledged || second.Attempts[0].AtMS != -1100 || second.Basis.Before.TakenNS != -1_100_000_000 {
			t.Errorf("the second: %q, %+v, %+v", second.Delivery, second.Attempts, second.Basis)
		}
		if e := second.Evidence; e.Unacked != 100 || e.Unsent != 0 {
			t.Errorf("evidence %+v", e)
		}
	})
}

// TestRecordOfEach: who asked without a call is told of no request, the policy's
// revision is that in force, and what nobody decided has no basis.
func TestRecordOfEach(t *testing.T) {
	bubble(t, "reporters", func(t *testing.T, w *world, a *Agent) {
		id := w.add(1, 10*time.Second, nil)
		w.add(2, 10*time.Second, nil)
		r := judgeOne(t, a, w.report(id, 0))
		if r.Delivery != verdict.Acknowledged || r.Revision != w.pol.Revision || r.Revision == "" {
			t.Errorf("%q, revision %q", r.Delivery, r.Revision)
		}
		time.Sleep(10 * time.Second) // the sweep
		w.mu.Lock()
		w.add(3, 10*time.Second, nil)
		third := w.look(w.sockets[3])
		w.mu.Unlock()
		if _, err := a.Probe(context.Background(), w.ns, third); err != nil {
			t.Fatal(err)
		}
		told := make(map[string]verdict.Delivery)
		for _, e := range Entries(a, 0) {
			told[e.Reporter] = e.Result.Delivery
		}
		want := map[string]verdict.Delivery{reporterCall: verdict.Acknowledged, reporterSweep: "", reporterAdmin: ""}
		if d := cmp.Diff(want, told); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
	})
	bubble(t, "the policy changes meanwhile", func(t *testing.T, w *world, a *Agent) {
		id := w.add(1, 10*time.Second, nil)
		next, err := policy.Parse("fake.yaml", []byte("version: 1\npeers: [{name: renamed, cidrs: [10.91.2.0/24], action: observe}]\n"))
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Second, func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.pol = next
		})
		if r := judgeOne(t, a, w.report(id, 0)); r.Revision != next.Revision || r.Policy != "renamed" || r.Action != ActionObserved {
			t.Errorf("%s under %s, revision %s", r.Action, r.Policy, r.Revision)
		}
	})
	bubble(t, "busy", func(t *testing.T, w *world, a *Agent) {
		w.add(1, 10*time.Second, nil)
		a.owners[owner{w.ns.Inode(), 0}] = MaxOwned
		r, err := a.Judge(context.Background(), Report{Caller: Caller{NS: w.ns}, Peer: w.sockets[1].snap.Remote, Sent: w.now()})
		if err != nil || len(r) != 1 || r[0].Reason != verdict.ReasonBusy || r[0].Basis != nil {
			t.Errorf("%+v, %v", r, err)
		}
		if e := Entries(a, 0); len(e) != 1 {
			t.Errorf("%d entries, want one for every verdict", len(e))
		}
	})
	bubble(t, "not found", func(t *testing.T, w *world, a *Agent) {
		id := w.add(1, time.Second, nil)
		delete(w.sockets, 1)
		r := judgeOne(t, a, w.report(id, 0))
		if e := Entries(a, 0); len(e) != 1 || r.Verdict != verdict.Gone || r.Delivery != "" {
			t.Errorf("%+v, %d entries", r, len(e))
		}
	})
}

// TestLog is the line of the log, whole: docs/log.md explains its keys.
func TestLog(t *testing.T) {
	const ns = "4026531840"
	bubble(t, "line", func(t *testing.T, w *world, a *Agent) {
		var text, nested bytes.Buffer
		keep := func(_ []string, at slog.Attr) slog.Attr {
			switch at.Key {
			case slog.TimeKey:
				return slog.Attr{}
			case "netns":
				return slog.String("netns", ns)
			}
			return at
		}
		opts := &slog.HandlerOptions{ReplaceAttr: keep}
		a.Log = slog.New(slog.NewMultiHandler(slog.NewTextHandler(&text, opts), slog.NewJSONHandler(&nested, opts)))
		id := w.add(71, 10*time.Second, nil)
		s := &w.sockets[71].snap
		s.BytesReceived, s.BytesAcked, s.SndUna, s.SndNxt, s.WriteSeq = 1000, 501, 5000, 5100, 5120
		judgeOne(t, a, w.report(id, 2*time.Second))
		golden(t, "log.txt", text.Bytes())
		golden(t, "log.json", nested.Bytes())

		var line struct {
			Verdict, Reason string
			Basis           verdict.Basis
			Probes          []Attempt
		}
		if err := json.Unmarshal(nested.Bytes(), &line); err != nil {
			t.Fatal(err)
		}
		in, err := line.Basis.Input()
		if v := verdict.Decide(in); err != nil || string(v.Word) != line.Verdict || v.Reason != line.Reason || len(line.Probes) == 0 {
			t.Errorf("from the line comes %+v, %v; it tells %+v", v, err, line)
		}
	})
}

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares with a file below testdata.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	name = filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Errorf("%s (-want +got):\n%s", name, d)
	}
}

// TestLogFailed: a close that the kernel refuses is one line, which says why.
func TestLogFailed(t *testing.T) {
	bubble(t, "refused", func(t *testing.T, w *world, a *Agent) {
		var log bytes.Buffer
		a.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
		w.destroyErr = errors.New("refused")
		r := judgeOne(t, a, w.report(w.add(1, 10*time.Second, nil), 0))
		if n := strings.Count(log.String(), "\n"); r.Action != ActionFailed || n != 1 || !strings.Contains(log.String(), "close a condemned connection: refused") {
			t.Errorf("%s, %d lines:\n%s", r.Action, n, &log)
		}
	})
}
