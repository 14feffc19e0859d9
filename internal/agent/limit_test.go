// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/policy"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

// limited is a peer that answers once in 500 ms, and whose answers are lost for a time.
type limited struct {
	w        *world
	heals    time.Duration
	answered time.Duration // last
}

// asked reports whether an answer to what is asked now arrives.
func (l *limited) asked() bool {
	now := l.w.now()
	if l.answered != 0 && now-l.answered < policy.MinSpacing {
		return false
	}
	l.answered = now
	return now >= l.heals
}

// own has the socket's kernel ask by itself after a time, and then again and again.
func (l *limited) own(s *fakeSocket, after, again time.Duration) {
	time.AfterFunc(after, func() {
		l.w.mu.Lock()
		defer l.w.mu.Unlock()
		l.w.ask(s, true)
		if s.snap.ProbesOut < 20 {
			l.own(s, again, again)
		}
	})
}

// TestAnswerLimit: an outage of the answers alone that is over when the last attempt is
// due costs nothing, whatever the peer has answered in vain before, and whoever asked;
// and what stays silent is closed soon after its window all the same.
func TestAnswerLimit(t *testing.T) {
	const step = 50 * time.Millisecond
	short := policy.Probe{Window: 1500 * time.Millisecond, Attempts: 3}
	for _, k := range []struct {
		name  string
		probe policy.Probe
		again time.Duration // what the kernel asks by itself; 0: nothing
		late  time.Duration // what a close may come after the window
		made  func(s *fakeSocket, at time.Duration)
	}{
		{"window probes", short, 1300 * time.Millisecond, 700 * time.Millisecond, func(s *fakeSocket, _ time.Duration) { s.snap.WriteSeq = 7 }},
		{"keepalives, none provoked", short, time.Second, 1100 * time.Millisecond, func(s *fakeSocket, _ time.Duration) { s.attempts = 0 }},
		{"provoked, to leave later", short, 0, 0, func(s *fakeSocket, at time.Duration) { s.heard += 10*time.Second - at }},
		{"provoked, to leave later, two", policy.Probe{Window: time.Second, Attempts: 2}, 0, 700 * time.Millisecond, func(s *fakeSocket, at time.Duration) { s.heard += 10*time.Second - at }},
		{"window probes, far apart", policy.Probe{Window: 3 * time.Second, Attempts: 2}, 1300 * time.Millisecond, 700 * time.Millisecond, func(s *fakeSocket, _ time.Duration) { s.snap.WriteSeq = 7 }},
	} {
		_, spacing := k.probe.Schedule(0)
		last := time.Duration(k.probe.Attempts-1) * spacing
		for at := time.Duration(0); at < last; at += step {
			for heals := at - at%(2*step); heals < last+4*step; heals += step {
				if heals > last {
					heals = time.Hour
				}
				bubble(t, fmt.Sprintf("%s, %v, over after %v", k.name, at, heals), func(t *testing.T, w *world, a *Agent) {
					w.pol.Peers[0].Probe, w.backedOff = k.probe, true
					peer := &limited{w: w, heals: w.now() + heals}
					id := w.add(1, 10*time.Second, func(int) bool { return peer.asked() })
					s := w.sockets[1]
					k.made(s, at)
					if k.again > 0 {
						w.provokeErr = loader.ErrUnsupported
						peer.own(s, at+time.Millisecond, k.again)
					}
					r := judgeOne(t, a, w.report(id, 0))
					if heals <= last && (r.Verdict != verdict.AliveSlow || w.destroyed() != 0) {
						t.Errorf("result %+v, %d destroyed; want it alive", r, w.destroyed())
					}
					most := k.probe.Window + k.late + settle
					if heals > last && (r.Verdict == verdict.AliveSlow || r.Duration > most) {
						t.Errorf("result %+v; want it within %v", r, most)
					}
				})
			}
		}
	}
	bubble(t, "one attempt, and a keepalive right before the report", func(t *testing.T, w *world, a *Agent) {
		w.pol.Peers[0].Probe = policy.Probe{Window: time.Second, Attempts: 1}
		peer := &limited{w: w, answered: w.now()}
		id := w.add(1, 10*time.Second, func(int) bool { return peer.asked() })
		w.sockets[1].snap.ProbesOut = 1
		time.Sleep(10 * time.Millisecond)
		if r := judgeOne(t, a, w.report(id, 0)); r.Verdict != verdict.AliveSlow || w.destroyed() != 0 {
			t.Errorf("result %+v, %d destroyed; want it alive", r, w.destroyed())
		}
	})
}
