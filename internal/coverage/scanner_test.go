// SPDX-License-Identifier: Apache-2.0

package coverage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
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
			s.last.mendable[7] = true
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
	s.last.mendable[7] = true
	if s.Mend = nil; s.next(&Report{}) < 225*time.Second {
		t.Error("nobody mends, and it does not wait")
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
	if c := second.policies["p"]; c.DriftFound != 2 || second.standing(first.mendable) != 1 {
		t.Errorf("second: %+v, %d standing", c, second.standing(first.mendable))
	}
	third := count(second, one(2, ""))
	if fourth := count(third, one(2, OptionsDrifted)); fourth.policies["p"].DriftFound != 3 {
		t.Errorf("drifted again: %+v", fourth.policies["p"])
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
