// SPDX-License-Identifier: Apache-2.0

package coverage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/netns"
)

// Between two scans there is a thousand times their CPU, and no more than the
// interval else; sooner where adoption is at work.
func TestNext(t *testing.T) {
	s := New(Config{Mend: func() {}})
	for _, tc := range []struct {
		cpu      time.Duration
		mendable bool
		standing uint64
		lo, hi   time.Duration
	}{
		{0, false, 0, 225 * time.Second, 376 * time.Second},
		{time.Second, false, 0, 1000 * time.Second, 1000 * time.Second},
		{time.Millisecond, true, 0, 10 * time.Second, 10 * time.Second},
		{30 * time.Millisecond, true, 0, 30 * time.Second, 30 * time.Second},
		{time.Millisecond, true, 1, 225 * time.Second, 376 * time.Second}, // it had its chance
	} {
		s.last = newTally()
		if tc.mendable {
			s.last.mendable[key{cookie: 7}] = 0
		}
		for range 20 {
			if got := s.next(&Report{CPU: tc.cpu, Standing: tc.standing}); got < tc.lo || got > tc.hi {
				t.Errorf("%+v: %s", tc, got)
			}
		}
	}
	often := New(Config{Every: 30 * time.Second})
	if got := often.next(&Report{CPU: time.Second}); got != 100*time.Second {
		t.Errorf("ten times as often, with a second of CPU: %s", got)
	}
	seldom := New(Config{Every: time.Hour})
	if got := seldom.next(&Report{CPU: 6 * time.Second}); got != 6000*time.Second {
		t.Errorf("seldom: %s", got)
	}
	if got := seldom.next(&Report{Outdated: true}); got > soon {
		t.Errorf("after one that was outdated: %s", got)
	}
	s.last.mendable[key{cookie: 7}] = 0
	if s.Mend = nil; s.next(&Report{}) < 225*time.Second {
		t.Error("nobody mends, and it does not wait")
	}
}

// programs have a policy and nothing else.
type programs struct {
	Programs
	force atomic.Pointer[loader.InForce]
}

func (p *programs) InForce() *loader.InForce { return p.force.Load() }

// Run sends the first canary and scans a second later; who wakes it has the next scan
// soon, and not at once.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, canaries := new(programs), 0
		p.force.Store(inForce(t))
		s := New(Config{
			Programs: p, Namespaces: spaces(func() []*netns.NS { return nil }), Log: slog.New(slog.DiscardHandler),
			Canary: func(context.Context) error { canaries++; return nil },
		})
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		done := make(chan struct{})
		go func() { defer close(done); s.Run(ctx) }()
		after := func(d time.Duration, scanned time.Duration, sent int) {
			t.Helper()
			time.Sleep(d - time.Since(began))
			synctest.Wait()
			if got := s.Report().Ended.Sub(began); got != scanned || canaries != sent {
				t.Errorf("after %s: scanned after %s, want %s; %d canaries, want %d", d, got, scanned, canaries, sent)
			}
		}
		after(1500*time.Millisecond, time.Second, 1)
		s.Wake()
		after(10*time.Second, time.Second, 1)
		after(12*time.Second, 11*time.Second, 2)
		after(60*time.Second, 11*time.Second, 2)
		s.Wake()
		after(61*time.Second, 60*time.Second, 3)
		cancel()
		<-done
	})
}

// A problem is told when it grows, and when it is over.
func TestTell(t *testing.T) {
	var log bytes.Buffer
	s := New(Config{Log: slog.New(slog.NewTextHandler(&log, nil))})
	var before Report
	for _, tc := range []struct {
		standing uint64
		want     string
	}{
		{0, ""}, {2, "level=WARN"}, {2, ""}, {3, "level=WARN"}, {1, ""}, {0, "level=INFO"}, {0, ""},
	} {
		log.Reset()
		r := Report{Standing: tc.standing, Policies: map[string]Count{"p": {Mendable: tc.standing}}}
		s.tell(&before, &r)
		if got := log.String(); !strings.Contains(got, tc.want) || (tc.want == "") != (got == "") {
			t.Errorf("%d after %d: logged %q, want %q", tc.standing, before.Standing, got, tc.want)
		}
		before = r
	}
}

// What one scan counts, and what it makes of the one before.
func TestTally(t *testing.T) {
	count := func(before *tally, found ...Found) *tally {
		n := newTally()
		n.see("p", before.policies["p"].DriftFound)
		for i := range found {
			n.add(&found[i], before.drifted)
		}
		return n
	}
	one := func(cookie uint64, r Reason) Found { return Found{ID: conn.ID{Cookie: cookie}, Policy: "p", Reason: r} }
	first := count(newTally(), one(1, ""), one(2, OptionsDrifted), one(3, MPTCP), one(4, Older), Found{Policy: "new"},
		Found{ID: conn.ID{Cookie: 5}, Policy: "p", Reason: NotInCgroup, left: true})
	c := first.policies["p"]
	if c.Expected != 5 || c.Bounded() != 1 || c.Mendable != 2 || c.DriftFound != 1 || len(first.policies) != 1 {
		t.Errorf("first: %+v", c)
	}
	second := count(first, one(2, Foreign), one(6, OptionsDrifted), one(4, ""))
	if c := second.policies["p"]; c.DriftFound != 2 || second.standing(first) != 1 {
		t.Errorf("second: %+v, %d standing", c, second.standing(first))
	}
	third := count(second, one(2, ""))
	if fourth := count(third, one(2, OptionsDrifted)); fourth.policies["p"].DriftFound != 3 {
		t.Errorf("drifted again: %+v", fourth.policies["p"])
	}
}

// What a scan did not see is remembered for a while where it could not see all, and
// is counted no more than once for it.
func TestCarry(t *testing.T) {
	one := func(netns uint32) Found {
		return Found{ID: conn.ID{Cookie: 1, Netns: netns}, Policy: "p", Reason: OptionsDrifted}
	}
	scan := func(before *tally, missed map[uint32]bool, found ...Found) *tally {
		n := newTally()
		n.see("p", before.policies["p"].DriftFound)
		for i := range found {
			n.add(&found[i], before.drifted)
		}
		n.carry(before, missed)
		return n
	}
	first := scan(newTally(), nil, one(7), one(8))
	blind := scan(first, map[uint32]bool{7: true})
	if blind.toMend() != 0 || blind.standing(first) != 0 || len(blind.drifted) != 1 {
		t.Errorf("one that missed a namespace: %+v", blind)
	}
	after := scan(blind, nil, one(7), one(8))
	if c := after.policies["p"]; c.DriftFound != 3 || after.standing(blind) != 1 {
		t.Errorf("the next: %+v, %d standing", c, after.standing(blind))
	}
	for range carried + 1 {
		blind = scan(blind, map[uint32]bool{7: true})
	}
	if len(blind.drifted)+len(blind.mendable) != 0 {
		t.Errorf("it is never forgotten: %+v", blind)
	}
}

// What a report says of a policy is known where the policy is in force, and where an
// incomplete scan saw something of it.
func TestKnown(t *testing.T) {
	some, none := Count{Expected: 1}, Count{}
	for _, tc := range []struct {
		r    Report
		want bool
	}{
		{Report{}, false},
		{Report{Policies: map[string]Count{"p": some}}, true},
		{Report{Policies: map[string]Count{"p": none}}, true},
		{Report{Policies: map[string]Count{"q": some}}, false},
		{Report{Policies: map[string]Count{"p": some}, Outdated: true}, false},
		{Report{Policies: map[string]Count{"p": some}, Err: errFickle}, true},
		{Report{Policies: map[string]Count{"p": none}, Err: errFickle}, false},
	} {
		if got := tc.r.Known("p"); got != tc.want {
			t.Errorf("%+v: %t", tc.r, got)
		}
	}
}

// A canary's answer is logged when it changes, and kept.
func TestSend(t *testing.T) {
	var log bytes.Buffer
	var answer error
	s := New(Config{
		Canary: func(context.Context) error { return answer },
		Log:    slog.New(slog.NewTextHandler(&log, nil)),
	})
	silent := fmt.Errorf("%w: sockops", ErrSilent)
	for _, tc := range []struct {
		answer error
		want   string // in the log, "": nothing is logged
	}{
		{nil, ""},
		{silent, "level=ERROR msg=\"the canary connection was not bounded\""},
		{silent, ""},
		{nil, "bounded again"},
		{errors.New("no cgroup"), "level=WARN msg=\"no canary connection could be made\""},
		{silent, "level=ERROR"},
	} {
		log.Reset()
		answer = tc.answer
		s.Send(t.Context())
		if got := s.LastCanary(); !errors.Is(got.Err, tc.answer) || got.Ended.IsZero() {
			t.Errorf("%v: kept %+v", tc.answer, got)
		}
		if got := log.String(); !strings.Contains(got, tc.want) || (tc.want == "") != (got == "") {
			t.Errorf("%v: logged %q, want %q", tc.answer, got, tc.want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	answer = ctx.Err()
	if s.Send(ctx); !errors.Is(s.LastCanary().Err, ErrSilent) {
		t.Error("one that was called off counts")
	}
}
