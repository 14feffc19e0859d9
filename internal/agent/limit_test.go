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
	loses    time.Duration // until then what the agent asks is lost on its way
	full     bool          // what the kernel asks by itself stays on its host
	byItself bool          // the kernel asks now
}

// asked reports whether an answer to what is asked now arrives.
func (l *limited) asked() bool {
	now := l.w.now()
	if l.byItself && l.full || !l.byItself && now < l.loses || l.answered != 0 && now-l.answered < policy.MinSpacing {
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
		l.byItself = true
		l.w.ask(s, true)
		l.byItself = false
		if s.snap.ProbesOut < 20 {
			l.own(s, again, again)
		}
	})
}

// limitCase is a connection that an outage befalls while it is judged.
type limitCase struct {
	name  string
	probe policy.Probe
	again time.Duration // what the kernel asks by itself; 0: nothing
	late  time.Duration // what a close may come after the window
	made  func(s *fakeSocket, at time.Duration)
	is    limited
}

// judge judges it, made as of a time, in an outage that is over after heals; last is
// when the last attempt is due.
func (k *limitCase) judge(t *testing.T, at, heals, last time.Duration) {
	bubble(t, fmt.Sprintf("%s, %v, over after %v", k.name, at, heals), func(t *testing.T, w *world, a *Agent) {
		w.pol.Peers[0].Probe, w.backedOff = k.probe, true
		peer := &limited{w: w, heals: w.now() + heals, loses: w.now() + k.is.loses, full: k.is.full}
		id := w.add(1, 10*time.Second, func(int) bool { return peer.asked() })
		s := w.sockets[1]
		k.made(s, at)
		if k.again > 0 {
			w.provokeErr = loader.ErrUnsupported
			first := at%k.again + time.Millisecond
			if s.snap.ProbesOut = 1; !k.is.full {
				peer.answered = w.now() + first - k.again // what it asked before the report
			}
			peer.own(s, first, k.again)
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

// TestAnswerLimit: an outage of the answers alone that is over when the last attempt is
// due costs nothing, whatever the peer has answered in vain before, and whoever asked;
// and what stays silent is closed soon after its window all the same.
func TestAnswerLimit(t *testing.T) {
	const step = 50 * time.Millisecond
	short := policy.Probe{Window: 1500 * time.Millisecond, Attempts: 3}
	two := policy.Probe{Window: 1050 * time.Millisecond, Attempts: 2}
	const once = 700 * time.Millisecond // half a second, and a look
	shut := func(s *fakeSocket, _ time.Duration) { s.snap.WriteSeq = 7 }
	young := func(s *fakeSocket, at time.Duration) { s.heard += 10*time.Second - at }
	for _, k := range []limitCase{
		{"window probes", short, 1300 * time.Millisecond, once, shut, limited{}},
		{"window probes, 800 ms apart", two, 800 * time.Millisecond, once, shut, limited{}},
		{"window probes, 700 ms apart", two, 700 * time.Millisecond, once, shut, limited{}},
		{"window probes, and attempts are lost", short, 1300 * time.Millisecond, once, shut, limited{loses: time.Second}},
		{"window probes that have no room", short, 500 * time.Millisecond, owedLimit, shut, limited{full: true}},
		{"keepalives, none provoked", short, time.Second, 1100 * time.Millisecond, func(s *fakeSocket, _ time.Duration) { s.attempts = 0 }, limited{}},
		{"provoked, to leave later", short, 0, 0, young, limited{}},
		{"provoked, to leave later, two", two, 0, 400 * time.Millisecond, young, limited{}}, // and has its time to be answered
		{"window probes, far apart", policy.Probe{Window: 3 * time.Second, Attempts: 2}, 1300 * time.Millisecond, once, shut, limited{}},
	} {
		_, spacing := k.probe.Schedule(0)
		last := time.Duration(k.probe.Attempts-1) * spacing
		for at := time.Duration(0); at < last; at += step {
			for heals := at - at%(2*step); heals < last+4*step; heals += step {
				if heals > last {
					heals = time.Hour
				}
				k.judge(t, at, heals, last)
			}
		}
	}
	bubble(t, "over while the last attempt waits, and the kernel asks again", func(t *testing.T, w *world, a *Agent) {
		w.pol.Peers[0].Probe, w.backedOff, w.provokeErr = short, true, loader.ErrUnsupported
		_, spacing := short.Schedule(0)
		due := 2 * spacing
		peer := &limited{w: w, heals: w.now() + due + 260*time.Millisecond, loses: w.now() + due}
		id := w.add(1, 10*time.Second, func(int) bool { return peer.asked() })
		shut(w.sockets[1], 0)
		peer.own(w.sockets[1], due-300*time.Millisecond, 530*time.Millisecond)
		time.AfterFunc(due+250*time.Millisecond, func() { peer.full = true }) // it asks no more
		if r := judgeOne(t, a, w.report(id, 0)); r.Verdict != verdict.AliveSlow || w.destroyed() != 0 {
			t.Errorf("result %+v, %d destroyed; want it alive", r, w.destroyed())
		}
	})
	bubble(t, "one attempt, and a keepalive right before the report", keepaliveBefore)
}

// keepaliveBefore: the peer, which answers only so often, has just answered a keepalive.
func keepaliveBefore(t *testing.T, w *world, a *Agent) {
	w.pol.Peers[0].Probe = policy.Probe{Window: time.Second, Attempts: 1}
	peer := &limited{w: w, answered: w.now()}
	id := w.add(1, 10*time.Second, func(int) bool { return peer.asked() })
	w.sockets[1].snap.ProbesOut = 1
	time.Sleep(10 * time.Millisecond)
	if r := judgeOne(t, a, w.report(id, 0)); r.Verdict != verdict.AliveSlow || w.destroyed() != 0 {
		t.Errorf("result %+v, %d destroyed; want it alive", r, w.destroyed())
	}
}

// TestLastKeepsDistance: an attempt that is late does not shorten the time to the last one:
// its own answer may have been lost, and what it was under way for longer than the last one
// counts against that at the peer.
func TestLastKeepsDistance(t *testing.T) {
	bubble(t, "late", func(t *testing.T, w *world, a *Agent) {
		w.pol.Peers[0].Probe = policy.Probe{Window: 1500 * time.Millisecond, Attempts: 3}
		_, spacing := w.pol.Peers[0].Probe.Schedule(0)
		id := w.add(1, 10*time.Second, nil)
		w.sockets[1].snap.WriteSeq = 7 // in flight: by segments
		began, late := w.now(), false
		w.again = func(*fakeSocket) {
			if now := w.now() - began; !late && now > spacing/2 {
				late = true
				time.Sleep(spacing)
			}
		}
		var ours []time.Duration
		for _, one := range judgeOne(t, a, w.report(id, 0)).Attempts {
			if one.Kind == probeSegment {
				ours = append(ours, time.Duration(one.AtMS)*time.Millisecond)
			}
		}
		if len(ours) != 3 || ours[1] < spacing+100*time.Millisecond || ours[2]-ours[1] < spacing {
			t.Errorf("attempts at %v, want the last one %v after the one before", ours, spacing)
		}
	})
}
