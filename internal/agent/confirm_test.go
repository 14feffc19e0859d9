// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/policy"
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

// TestConfirmLife: where segments of ours do not count, one keepalive condemns nothing, and
// is waited for all the same: its answer is a sign of life.
func TestConfirmLife(t *testing.T) {
	const idle, due = 5 * time.Second, 4 * time.Second
	for answer, want := range map[time.Duration]verdict.Word{0: verdict.Unknown, 200 * time.Millisecond: verdict.AliveSlow} {
		bubble(t, fmt.Sprintf("answered after %v", answer), func(t *testing.T, w *world, a *Agent) {
			w.astray = &prober.Sent{Multipath: true}
			id := w.add(1, idle-due, nil)
			w.sockets[1].snap.Options.Idle = idle
			w.ownKeepalive(1, due, answer)
			r := judgeOne(t, a, w.report(id, 0))
			synctest.Wait()
			if r.Verdict != want || w.destroyed() != 0 || r.Duration < due {
				t.Errorf("result %+v, %d destroyed; want %s", r, w.destroyed(), want)
			}
		})
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

// own is what the kernel of a socket with data to send asks by itself.
type own struct {
	shut   bool                // the window is
	asks   func(s *fakeSocket) // what shows of it
	tail   bool                // a probe of the tail comes first, of which nothing shows
	taken  bool                // the window was taken back
	timers bool                // the kernel tells when
}

// plan has it asked at a time, and answered after another; 0: never.
func (o *own) plan(w *world, s *fakeSocket, due, answer time.Duration) {
	w.backedOff, s.snap.WriteSeq, s.wrote = true, 7, s.heard
	if !o.shut || o.taken {
		s.snap.SndNxt = 7
	}
	if s.snap.SndWnd = 1; o.shut {
		s.snap.SndWnd = 0
	}
	at := w.now() + due
	do := func(in time.Duration, f func()) {
		time.AfterFunc(in, func() { w.mu.Lock(); defer w.mu.Unlock(); f() })
	}
	if s.timer = at; o.tail {
		s.timer = w.now() + due - due/4
		do(due-due/4, func() { s.timer = at })
	}
	if !o.timers {
		s.timer = 0
	}
	do(due, func() { o.asks(s); s.timer = w.now() + time.Hour })
	if answer > 0 {
		do(due+answer, func() { s.heard, s.snap.ProbesOut, s.snap.Retransmits = w.now(), 0, 0 })
	}
}

// TestConfirmOwn: where segments of ours go unanswered, a window probe or a retransmission
// of the connection's own decides, whenever in the window or after it it comes, and has its
// time to be answered; one that is too far off is not waited for.
func TestConfirmOwn(t *testing.T) {
	const window, answered = 3 * time.Second, 350 * time.Millisecond
	probe := func(s *fakeSocket) { s.snap.ProbesOut++ }
	again := func(s *fakeSocket) { s.snap.Retransmits++ }
	for name, o := range map[string]own{
		"window probe":                                     {shut: true, asks: probe, timers: true},
		"window probe, nobody tells when":                  {shut: true, asks: probe},
		"retransmission":                                   {asks: again, timers: true},
		"retransmission, after the tail's":                 {asks: again, timers: true, tail: true},
		"retransmission into a window that was taken back": {shut: true, taken: true, timers: true},
	} {
		for _, due := range []time.Duration{100 * time.Millisecond, 2600 * time.Millisecond, 2990 * time.Millisecond, 3100 * time.Millisecond, 9 * time.Second, 14 * time.Second} {
			for _, answer := range []time.Duration{0, answered} {
				bubble(t, fmt.Sprintf("%s, due %v, answered after %v", name, due, answer), func(t *testing.T, w *world, a *Agent) {
					id := w.add(1, 5*time.Second, nil)
					o := o
					if o.taken {
						o.asks = func(s *fakeSocket) { s.wrote = w.now() }
					}
					o.plan(w, w.sockets[1], due, answer)
					r := judgeOne(t, a, w.report(id, 0))
					synctest.Wait()
					most := max(window, due+policy.AnswerIn(0)) + 100*time.Millisecond
					if o.shut {
						most += apart // the last attempt may wait for the peer's limit
					}
					waited := due < window || o.timers && due < window+confirmLimit
					switch {
					case !waited && (r.Reason != verdict.ReasonUnconfirmed || w.destroyed() != 0):
						t.Errorf("result %+v, %d destroyed; want it left", r, w.destroyed())
					case waited && answer > 0 && (r.Verdict != verdict.AliveSlow || w.destroyed() != 0):
						t.Errorf("result %+v, %d destroyed; want it alive", r, w.destroyed())
					case waited && answer == 0 && (r.Verdict != verdict.DeadPath || w.destroyed() != 1):
						t.Errorf("result %+v, %d destroyed; want it dead", r, w.destroyed())
					case waited && r.Duration > most, !waited && !o.tail && r.Duration > window+100*time.Millisecond:
						t.Errorf("it took %v", r.Duration)
					}
				})
			}
		}
	}
}

// TestConfirmProvoked: a keepalive that was asked for in a short window leaves only when the
// connection has been silent for a second: it decides all the same.
func TestConfirmProvoked(t *testing.T) {
	for _, attempts := range []int{1, 2} {
		for _, answered := range []bool{false, true} {
			bubble(t, fmt.Sprintf("%d attempts, answered %v", attempts, answered), func(t *testing.T, w *world, a *Agent) {
				w.pol.Peers[0].Probe = policy.Probe{Window: time.Duration(attempts) * policy.MinSpacing, Attempts: attempts}
				id := w.add(1, 50*time.Millisecond, nil)
				s := w.sockets[1]
				s.snap.Options.Idle = time.Minute // what its application has
				w.again = func(*fakeSocket) {
					if answered && s.snap.ProbesOut > 0 && s.timer == 0 {
						s.timer = w.now() // once
						time.AfterFunc(350*time.Millisecond, func() {
							w.mu.Lock()
							defer w.mu.Unlock()
							s.heard, s.snap.ProbesOut = w.now(), 0
						})
					}
				}
				r := judgeOne(t, a, w.report(id, 0))
				synctest.Wait()
				want, destroyed := verdict.DeadPath, 1
				if answered {
					want, destroyed = verdict.AliveSlow, 0
				}
				if r.Verdict != want || w.destroyed() != destroyed || r.Duration > 1500*time.Millisecond {
					t.Errorf("result %+v, %d destroyed; want %s", r, w.destroyed(), want)
				}
			})
		}
	}
}

// TestConfirmEachOwn: where segments of ours do not count, the last of the connection's own
// that is needed has its time to be answered, too.
func TestConfirmEachOwn(t *testing.T) {
	for _, answer := range []time.Duration{0, 350 * time.Millisecond} {
		bubble(t, fmt.Sprintf("answered after %v", answer), func(t *testing.T, w *world, a *Agent) {
			w.pol.Peers[0].Probe = policy.Probe{Window: 3 * time.Second, Attempts: 2}
			w.astray = &prober.Sent{Multipath: true}
			id := w.add(1, 5*time.Second, nil)
			shut := own{shut: true, asks: func(s *fakeSocket) { s.snap.ProbesOut++ }}
			shut.plan(w, w.sockets[1], 500*time.Millisecond, 0)
			shut.plan(w, w.sockets[1], 2990*time.Millisecond, answer)
			r := judgeOne(t, a, w.report(id, 0))
			synctest.Wait()
			// Who answers may have been asked by a segment of ours, on another way.
			if answer > 0 && r.Reason != verdict.ReasonMultipath || answer == 0 && r.Verdict != verdict.DeadPath {
				t.Errorf("result %+v", r)
			}
		})
	}
	bubble(t, "too few", func(t *testing.T, w *world, a *Agent) {
		w.astray = &prober.Sent{Multipath: true}
		id := w.add(1, 5*time.Second, nil)
		shut := own{shut: true, timers: true, asks: func(s *fakeSocket) { s.snap.ProbesOut++ }}
		shut.plan(w, w.sockets[1], 5*time.Second, 0)
		if r := judgeOne(t, a, w.report(id, 0)); r.Reason != verdict.ReasonMultipath || r.Duration > 3100*time.Millisecond {
			t.Errorf("result %+v, want it left at the window's end", r)
		}
	})
}
