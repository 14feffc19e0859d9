// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/prober"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

// ownKeepalive makes the socket's kernel send one keepalive by itself, some time
// from now, which is answered after the round trip; 0: never.
func (w *world) ownKeepalive(cookie uint64, due, answer time.Duration) {
	s := w.sockets[cookie]
	w.provokeErr = loader.ErrUnsupported
	time.AfterFunc(due, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		s.snap.ProbesOut++
	})
	if answer > 0 {
		time.AfterFunc(due+answer, func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			s.heard = w.now()
			s.snap.ProbesOut = 0
		})
	}
}

// TestConfirm: where no keepalive can be provoked and segments of ours go
// unanswered, the connection's own decides, whenever in the window or after it
// it comes, and has its time to be answered.
func TestConfirm(t *testing.T) {
	const idle = 5 * time.Second
	for _, due := range []time.Duration{500 * time.Millisecond, 1500 * time.Millisecond, 2900 * time.Millisecond, 2999 * time.Millisecond, 3100 * time.Millisecond, 4900 * time.Millisecond} {
		for _, answer := range []time.Duration{0, 200 * time.Millisecond} {
			bubble(t, fmt.Sprintf("due %v, answered after %v", due, answer), func(t *testing.T, w *world, a *Agent) {
				id := w.add(1, idle-due, nil)
				w.sockets[1].snap.Options.Idle = idle
				w.ownKeepalive(1, due, answer)
				r := judgeOne(t, a, w.report(id, 0))
				synctest.Wait()
				if answer > 0 && (r.Verdict != verdict.AliveSlow || w.destroyed() != 0) {
					t.Errorf("result %+v, %d destroyed; want it alive", r, w.destroyed())
				}
				if answer == 0 && (r.Verdict != verdict.DeadPath || w.destroyed() != 1) {
					t.Errorf("result %+v, %d destroyed; want it dead", r, w.destroyed())
				}
				if r.Duration < due || r.Duration > max(due, 3*time.Second)+2*time.Second {
					t.Errorf("it took %v", r.Duration)
				}
			})
		}
	}
}

// TestConfirmGivesUp: a keepalive that is far off, late beyond reason or of no
// use any more is not waited for.
func TestConfirmGivesUp(t *testing.T) {
	for _, tc := range []struct {
		name         string
		idle, silent time.Duration
		sendErr      error
		word         verdict.Word
		reason       string
		most         time.Duration
	}{
		{"far off", time.Hour, time.Second, nil, verdict.Unknown, verdict.ReasonUnconfirmed, 4 * time.Second},
		{"never comes", 4 * time.Second, 2 * time.Second, nil, verdict.Unknown, verdict.ReasonUnconfirmed, 6 * time.Second},
		{"refused here", 9 * time.Second, time.Second, prober.ErrNoRoute, verdict.LocalFault, verdict.ReasonNoRoute, 4 * time.Second},
	} {
		bubble(t, tc.name, func(t *testing.T, w *world, a *Agent) {
			id := w.add(1, tc.silent, nil)
			w.sockets[1].snap.Options.Idle = tc.idle
			w.provokeErr, w.sendErr = loader.ErrUnsupported, tc.sendErr
			r := judgeOne(t, a, w.report(id, 0))
			if r.Verdict != tc.word || r.Reason != tc.reason || w.destroyed() != 0 || r.Duration > tc.most {
				t.Errorf("result %+v, %d destroyed; want %s (%s) within %v", r, w.destroyed(), tc.word, tc.reason, tc.most)
			}
		})
	}
}

// TestSpared: where a keepalive may not be provoked segments of ours ask in every attempt,
// and condemn nothing.
func TestSpared(t *testing.T) {
	bubble(t, "silence", func(t *testing.T, w *world, a *Agent) {
		id := w.add(1, 2*time.Second, nil)
		w.sockets[1].snap.Options.Idle = time.Hour
		w.spared = true
		r := judgeOne(t, a, w.report(id, 0))
		if r.Verdict != verdict.Unknown || r.Reason != verdict.ReasonUnconfirmed || w.destroyed() != 0 || w.sent != 5 || w.provoked != 0 {
			t.Errorf("result %+v, %d destroyed, %d segments, %d keepalives; want unknown, 0, 5, 0", r, w.destroyed(), w.sent, w.provoked)
		}
	})
}
