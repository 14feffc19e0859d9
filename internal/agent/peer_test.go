// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/policy"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

// TestWhichDirection: a connection without a record is older than the programs only where
// a policy names it in the direction that it has; else none names it. The listeners are
// asked only where that makes a difference.
func TestWhichDirection(t *testing.T) {
	const in, out = policy.Directions(conn.Inbound), policy.Directions(conn.Outbound)
	unrecorded, recorded, guessed := conn.Snapshot{}, conn.Snapshot{HasRecord: true}, conn.Snapshot{HasRecord: true}
	recorded.Record = conn.Record{Policy: 9, Direction: conn.Inbound}
	guessed.Record = conn.Record{Policy: 9, Direction: conn.Inbound, Adopted: true, Ambiguous: true}
	for name, tc := range map[string]struct {
		entry  string
		have   conn.Snapshot
		infers policy.Directions
		err    error
		older  bool
		asked  int
	}{
		"accepted, outbound alone is named":   {"cidrs: [10.91.2.0/24], direction: outbound", unrecorded, in, nil, false, 1},
		"opened, outbound alone is named":     {"cidrs: [10.91.2.0/24], direction: outbound", unrecorded, out, nil, true, 1},
		"not certain":                         {"cidrs: [10.91.2.0/24], direction: outbound", unrecorded, policy.Both, nil, true, 1},
		"nobody can tell":                     {"cidrs: [10.91.2.0/24], direction: outbound", unrecorded, 0, errors.New("no inet_diag"), true, 1},
		"by the service's port":               {"cidrs: [10.91.2.0/24], ports: [7100]", unrecorded, in, nil, false, 1},
		"both are named":                      {"cidrs: [10.91.2.0/24]", unrecorded, in, nil, true, 0},
		"neither is":                          {"cidrs: [10.91.9.0/24], direction: outbound", unrecorded, out, nil, false, 0},
		"seen accepted, its entry is gone":    {"cidrs: [10.91.2.0/24], direction: outbound", recorded, out, nil, false, 0},
		"adopted by guess, its entry is gone": {"cidrs: [10.91.2.0/24], direction: outbound", guessed, out, nil, true, 1},
	} {
		bubble(t, name, func(t *testing.T, w *world, a *Agent) {
			var err error
			if w.pol, err = policy.Parse("p.yaml", []byte("version: 1\npeers: [{name: server, "+tc.entry+"}]\n")); err != nil {
				t.Fatal(err)
			}
			w.directions, w.directionsErr = tc.infers, tc.err
			id := w.add(1, time.Minute, nil)
			s := &w.sockets[1].snap
			s.HasRecord, s.Record = tc.have.HasRecord, tc.have.Record
			r := judgeOne(t, a, w.report(id, 0))
			want := map[bool]string{true: verdict.ReasonOlder, false: verdict.ReasonNoPolicy}[tc.older]
			if r.Verdict != verdict.Unmanaged || r.Reason != want || w.listed != tc.asked {
				t.Errorf("%s, %s, asked %d times; want %s, %d", r.Verdict, r.Reason, w.listed, want, tc.asked)
			}
		})
	}
}

// TestDirectionHeldUp: who asks the listeners where inet_diag is held up is answered all the
// same, all share one question, and it takes no place from walks.
func TestDirectionHeldUp(t *testing.T) {
	bubble(t, "held up", func(t *testing.T, w *world, a *Agent) {
		var err error
		if w.pol, err = policy.Parse("p.yaml", []byte("version: 1\npeers: [{name: server, cidrs: [10.91.2.0/24], direction: outbound}]\n")); err != nil {
			t.Fatal(err)
		}
		let := make(chan struct{})
		defer close(let)
		w.directions, w.listing = policy.Directions(conn.Inbound), let
		id := w.add(1, time.Minute, nil)
		w.sockets[1].snap.HasRecord = false
		for range 2 * maxWalks {
			began := w.now()
			if r := judgeOne(t, a, w.report(id, 0)); r.Reason != verdict.ReasonOlder || w.now()-began > 2*walkLimit {
				t.Fatalf("after %s: %+v", w.now()-began, r)
			}
		}
		if _, err := a.Scan(w.ns, func(*conn.Snapshot) bool { return true }); w.listed != 1 || err != nil {
			t.Errorf("%d questions; a walk: %v", w.listed, err)
		}
	})
}
