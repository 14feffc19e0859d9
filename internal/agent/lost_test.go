// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/policy"
	"github.com/sockhealth/sockhealth/internal/prober"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

// TestLostPatterns: whichever of the attempts are lost, one that is answered saves
// the connection, and only when all are lost is it closed.
func TestLostPatterns(t *testing.T) {
	for name, made := range map[string]func(*fakeSocket){
		"idle":      func(*fakeSocket) {},
		"in flight": func(s *fakeSocket) { s.snap.WriteSeq = 7 },
		"just used": func(s *fakeSocket) { s.heard += 9700 * time.Millisecond },
		"called":    func(s *fakeSocket) { s.heard += 10 * time.Second },
	} {
		for attempts := 1; attempts <= 5; attempts++ {
			for answered := range 1 << attempts {
				bubble(t, fmt.Sprintf("%s, %d attempts, answered %0*b", name, attempts, attempts, answered), func(t *testing.T, w *world, a *Agent) {
					w.pol.Peers[0].Probe.Attempts = attempts
					_, spacing := w.pol.Peers[0].Probe.Schedule(0)
					began := w.now()
					id := w.add(1, 10*time.Second, func(int) bool {
						n := min(int((w.now()-began)/spacing), attempts-1)
						return answered>>n&1 == 1
					})
					made(w.sockets[1])
					r := judgeOne(t, a, w.report(id, 0))
					want, closed := verdict.AliveSlow, 0
					if answered == 0 {
						want, closed = verdict.DeadPath, 1
					}
					if r.Verdict != want || w.destroyed() != closed {
						t.Errorf("result %+v, %d destroyed; want %s", r, w.destroyed(), want)
					}
				})
			}
		}
	}
}

// TestUncertainWay: where segments of ours may take another way than the
// connection, their loss counts for nothing, however often the kernel's own were
// lost in an outage that is over. What the kernel itself sends still decides.
func TestUncertainWay(t *testing.T) {
	for reason, way := range map[string]prober.Sent{
		verdict.ReasonMultipath: {Multipath: true}, verdict.ReasonUnconfirmed: {Err: errors.New("the kernel does not say")},
	} {
		bubble(t, "in flight, the timer backed off, "+reason, func(t *testing.T, w *world, a *Agent) {
			var log bytes.Buffer
			a.Log = slog.New(slog.NewTextHandler(&log, nil))
			w.astray, w.backedOff = &way, true
			id := w.add(1, 10*time.Second, nil)
			w.sockets[1].snap.WriteSeq, w.sockets[1].snap.Retransmits = 7, 6
			r := judgeOne(t, a, w.report(id, 0))
			if r.Verdict != verdict.Unknown || r.Reason != reason || w.destroyed() != 0 || w.sent != 5 {
				t.Errorf("result %+v, %d destroyed, %d segments", r, w.destroyed(), w.sent)
			}
			if n := strings.Count(log.String(), "the kernel does not say"); n != 1 && way.Err != nil {
				t.Errorf("told %d times in %s", n, &log)
			}
		})
	}
	bubble(t, "on the connection's way, the timer backed off", func(t *testing.T, w *world, a *Agent) {
		w.backedOff = true
		id := w.add(1, 10*time.Second, nil)
		w.sockets[1].snap.WriteSeq, w.sockets[1].snap.Retransmits = 7, 6
		if r := judgeOne(t, a, w.report(id, 0)); r.Verdict != verdict.DeadPath || w.destroyed() != 1 {
			t.Errorf("result %+v, %d destroyed", r, w.destroyed())
		}
	})
	bubble(t, "in flight, an answer by whichever way", func(t *testing.T, w *world, a *Agent) {
		w.astray, w.backedOff = &prober.Sent{}, true
		id := w.add(1, 10*time.Second, func(n int) bool { return n == 5 })
		w.sockets[1].snap.WriteSeq = 7
		if r := judgeOne(t, a, w.report(id, 0)); r.Verdict != verdict.AliveSlow || w.destroyed() != 0 {
			t.Errorf("result %+v, %d destroyed", r, w.destroyed())
		}
	})
	bubble(t, "in flight, an answer by whichever way, and none to the connection's own", func(t *testing.T, w *world, a *Agent) {
		w.astray = &prober.Sent{Multipath: true}
		id := w.add(1, 10*time.Second, func(n int) bool { return n == 5 })
		w.sockets[1].snap.WriteSeq = 7
		if r := judgeOne(t, a, w.report(id, 0)); r.Verdict != verdict.Unknown || r.Reason != verdict.ReasonMultipath || w.destroyed() != 0 {
			t.Errorf("result %+v, %d destroyed", r, w.destroyed())
		}
	})
	bubble(t, "in flight, an answer by whichever way, until one is the connection's own", untilItsOwn)
	bubble(t, "idle, an answer by whichever way, and none to the kernel's keepalives", func(t *testing.T, w *world, a *Agent) {
		w.astray = &prober.Sent{Multipath: true}
		id := w.add(1, 10*time.Second, func(n int) bool { return n == 6 }) // the last attempt is both
		if r := judgeOne(t, a, w.report(id, 0)); r.Verdict != verdict.Unknown || r.Reason != verdict.ReasonMultipath || w.destroyed() != 0 {
			t.Errorf("result %+v, %d destroyed", r, w.destroyed())
		}
	})
	bubble(t, "idle: the kernel's keepalives decide", func(t *testing.T, w *world, a *Agent) {
		w.astray = &prober.Sent{}
		if r := judgeOne(t, a, w.report(w.add(1, 10*time.Second, nil), 0)); r.Verdict != verdict.DeadPath || w.destroyed() != 1 {
			t.Errorf("result %+v, %d destroyed", r, w.destroyed())
		}
	})
}

// untilItsOwn: the limit strikes once the answers are known to be the connection's own.
func untilItsOwn(t *testing.T, w *world, a *Agent) {
	w.astray = &prober.Sent{Multipath: true}
	w.pol.Peers[0].CloseSilentAfter = 5 * time.Second
	id := w.add(1, 10*time.Second, func(n int) bool { return n%5 == 0 })
	f := w.sockets[1]
	f.snap.WriteSeq, f.wrote = 7, w.now()
	if r := judgeOne(t, a, w.report(id, 0)); r.Reason != verdict.ReasonMultipath {
		t.Errorf("result %+v", r)
	}
	time.Sleep(15 * time.Second) // the limit, and the window that begins then
	w.mu.Lock()
	w.astray = nil
	w.mu.Unlock()
	time.Sleep(2 * onceMore)
	if w.destroyed() != 1 {
		t.Errorf("%d destroyed", w.destroyed())
	}
}

// TestDiedInTheMiddle: a call of 30 s on a channel that gave a part of the answer
// and died at its first second.
func TestDiedInTheMiddle(t *testing.T) {
	bubble(t, "died at second 1", func(t *testing.T, w *world, a *Agent) {
		id := w.add(1, 0, nil)
		w.sockets[1].data = w.now() // the first part of the answer
		sent := w.now() - time.Second
		time.Sleep(29 * time.Second)
		r := w.report(id, 0)
		r.Sent = sent
		got := judgeOne(t, a, r)
		if got.Verdict != verdict.DeadPath || w.destroyed() != 1 || !got.Evidence.PayloadSinceCall || got.Evidence.CallAge != 30*time.Second {
			t.Errorf("result %+v, %d destroyed", got, w.destroyed())
		}
	})
}

// TestSleep: the machine sleeps, or the agent stands still, in the middle of a
// judgement, and the path comes back some time after. What was lost before does not
// count, and what was not asked even less.
func TestSleep(t *testing.T) {
	for _, after := range []int{1, 2, 4, 5} { // attempts
		bubble(t, fmt.Sprintf("after %d attempts", after), func(t *testing.T, w *world, a *Agent) {
			up := time.Duration(1 << 62)
			id := w.add(1, 10*time.Second, func(int) bool { return w.now() > up })
			w.again = func(s *fakeSocket) {
				if s.attempts >= after && w.slept == 0 {
					w.slept, up = time.Minute, w.now()+1500*time.Millisecond
				}
			}
			r := judgeOne(t, a, w.report(id, 2*time.Second))
			if r.Verdict != verdict.AliveSlow || w.destroyed() != 0 || r.Duration > 6*time.Second {
				t.Errorf("result %+v, %d destroyed", r, w.destroyed())
			}
		})
	}
	bubble(t, "and it is dead", func(t *testing.T, w *world, a *Agent) {
		id := w.add(1, 10*time.Second, nil)
		w.again = func(s *fakeSocket) {
			if s.attempts == 3 {
				w.slept = time.Minute
			}
		}
		r := judgeOne(t, a, w.report(id, 2*time.Second))
		if r.Verdict != verdict.DeadPath || w.destroyed() != 1 || r.Evidence.ProbesSent != 6 || w.provoked != 8 {
			t.Errorf("result %+v, %d destroyed, %d keepalives; want a window of its own after the sleep", r, w.destroyed(), w.provoked)
		}
	})
}

// TestHeardMeanwhile: what came while the agent stood still may be as old as that. It says
// nothing about the peer now, whether it was an acknowledgement or the answer itself.
func TestHeardMeanwhile(t *testing.T) {
	for _, k := range []struct {
		name     string
		payload  bool
		answers  bool // from then on
		want     verdict.Word
		destroys int
	}{
		{"an acknowledgement, then the peer died", false, false, verdict.DeadPath, 1},
		{"payload, then the peer died", true, false, verdict.DeadPath, 1},
		{"an acknowledgement, and it lives", false, true, verdict.AliveSlow, 0},
		{"payload, and it lives", true, true, verdict.Alive, 0},
	} {
		for _, between := range []bool{false, true} { // it stands still when it has just looked
			for _, again := range []bool{false, true} { // and does so in each further window
				bubble(t, fmt.Sprintf("%s, between: %v, again: %v", k.name, between, again), func(t *testing.T, w *world, a *Agent) {
					stood, came := 0, 0
					id := w.add(1, 10*time.Minute, func(int) bool { return k.answers && stood > 0 && !again })
					w.again = func(s *fakeSocket) {
						was := stood
						if s.attempts >= 2+6*stood && (stood == 0 || again) {
							stood++
							w.slept += time.Minute
						}
						if came == stood || between && was < stood {
							return
						}
						came = stood
						s.heard = w.now() - 50*time.Second + time.Duration(stood)*time.Second
						if k.payload {
							s.data = s.heard
							s.snap.BytesReceived++
						}
					}
					want, destroys := k.want, k.destroys
					if again {
						want, destroys = verdict.Unknown, 0
					}
					r := judgeOne(t, a, w.report(id, 2*time.Minute))
					if r.Verdict != want || w.destroyed() != destroys {
						t.Errorf("result %+v, %d destroyed, stood still %d times", r, w.destroyed(), stood)
					}
				})
			}
		}
	}
}

// TestSleepsOn: where the agent stands still again and again a judgement ends, and
// condemns nothing.
func TestSleepsOn(t *testing.T) {
	bubble(t, "again and again", func(t *testing.T, w *world, a *Agent) {
		id := w.add(1, 10*time.Second, nil)
		slept := 0
		w.again = func(s *fakeSocket) {
			if s.attempts%6 == 0 && s.attempts > slept { // after the last attempt of each window
				slept = s.attempts
				w.slept += time.Minute
			}
		}
		r := judgeOne(t, a, w.report(id, 2*time.Second))
		if r.Verdict != verdict.Unknown || r.Reason != verdict.ReasonProbeFailed || w.destroyed() != 0 || r.Duration > 10*time.Second || w.provoked != 15 {
			t.Errorf("result %+v, %d destroyed", r, w.destroyed())
		}
	})
}

// TestLocalProxy: the answer of a proxy on this host is no sign of life, and
// nothing is closed for it; its silence is the connection's, and payload that it
// passes on is an answer. It is asked about only where something was answered.
func TestLocalProxy(t *testing.T) {
	answers := func(int) bool { return true }
	bubble(t, "answers", func(t *testing.T, w *world, a *Agent) {
		w.leg = true
		w.app = func() prober.AppOutcome { return prober.AppSilent }
		w.pol.Peers[0].CloseSilentAfter = time.Second
		w.pol.Peers[0].AppProbe = &policy.AppProbe{CloseHung: true}
		r := judgeOne(t, a, w.report(w.add(1, 10*time.Second, answers), 2*time.Second))
		if r.Verdict != verdict.Unknown || r.Reason != verdict.ReasonLocalLeg || w.destroyed() != 0 || w.asked != 0 || w.legs != 1 {
			t.Errorf("result %+v, %d destroyed, application asked %d times, proxy %d", r, w.destroyed(), w.asked, w.legs)
		}
	})
	bubble(t, "payload since the call, from before", func(t *testing.T, w *world, a *Agent) {
		w.leg = true
		id := w.add(1, 10*time.Second, answers)
		w.sockets[1].data = w.now() - 10*time.Second
		if r := judgeOne(t, a, w.report(id, 20*time.Second)); r.Reason != verdict.ReasonLocalLeg {
			t.Errorf("result %+v", r)
		}
	})
	bubble(t, "answers, and nobody can tell who it was", nobodyTells)
	bubble(t, "silent", func(t *testing.T, w *world, a *Agent) {
		w.leg = true
		r := judgeOne(t, a, w.report(w.add(1, 10*time.Second, nil), 2*time.Second))
		if r.Verdict != verdict.DeadPath || w.destroyed() != 1 || w.legs != 0 {
			t.Errorf("result %+v, %d destroyed, proxy asked about %d times", r, w.destroyed(), w.legs)
		}
	})
	bubble(t, "passes the answer on", func(t *testing.T, w *world, a *Agent) {
		w.leg = true
		id := w.add(1, 10*time.Second, nil)
		time.AfterFunc(time.Second, func() { w.payload(1) })
		if r := judgeOne(t, a, w.report(id, 2*time.Second)); r.Verdict != verdict.Alive || w.destroyed() != 0 {
			t.Errorf("result %+v, %d destroyed", r, w.destroyed())
		}
	})
	bubble(t, "the first look suffices", func(t *testing.T, w *world, a *Agent) {
		id := w.add(1, 0, nil)
		w.sockets[1].data = w.now()
		if r := judgeOne(t, a, w.report(id, time.Second)); r.Verdict != verdict.Alive || w.legs != 0 {
			t.Errorf("result %+v, proxy asked about %d times", r, w.legs)
		}
	})
}

// nobodyTells: while conntrack does not say who answers nothing is closed, which is
// told once; when it does the limit has passed.
func nobodyTells(t *testing.T, w *world, a *Agent) {
	var log bytes.Buffer
	a.Log = slog.New(slog.NewTextHandler(&log, nil))
	w.leg, w.legErr = false, errors.New("conntrack is held up")
	w.app = func() prober.AppOutcome { return prober.AppSilent }
	w.pol.Peers[0].CloseSilentAfter = 5 * time.Second
	w.pol.Peers[0].AppProbe = &policy.AppProbe{CloseHung: true}
	id := w.add(1, 10*time.Second, func(int) bool { return true })
	for range 3 {
		r := judgeOne(t, a, w.report(id, 20*time.Second))
		if r.Verdict != verdict.Unknown || r.Reason != verdict.ReasonLegUnknown || r.Action != ActionNone {
			t.Errorf("result %+v", r)
		}
	}
	time.Sleep(complainEvery / 2) // asked about again and again
	if w.mu.Lock(); w.destroys != 0 || w.asked != 0 {
		t.Errorf("%d destroyed, application asked %d times", w.destroys, w.asked)
	}
	w.legErr = nil
	w.mu.Unlock()
	if n := strings.Count(log.String(), "held up"); n != 1 {
		t.Errorf("told %d times in %s", n, &log)
	}
	time.Sleep(2 * onceMore)
	if w.destroyed() != 1 { // it is known now, and the limit has passed
		t.Errorf("%d destroyed", w.destroyed())
	}
}
