// SPDX-License-Identifier: Apache-2.0

package api

import (
	"testing"
	"time"
)

// hand is a clock that is set by hand.
type hand struct{ at time.Duration }

func (h *hand) now() time.Duration { return h.at }

func TestBucket(t *testing.T) {
	clock := &hand{at: time.Hour}
	b := newBuckets(clock.now)
	me, other := identity{1000, 1}, identity{1000, 2}
	heard := func(whose identity) (n int) {
		for b.take(whose, costSocket) {
			n++
		}
		return n
	}
	for _, step := range []struct {
		after time.Duration
		want  int
	}{
		{0, 200},
		{0, 0},
		{19 * time.Millisecond, 0},
		{time.Millisecond, 1}, // 50 a second: one each 20 ms
		{time.Second, 50},
		{time.Hour, 200}, // never more than the burst
	} {
		clock.at += step.after
		if got := heard(me); got != step.want {
			t.Errorf("%s later: %d reports heard, want %d", step.after, got, step.want)
		}
	}
	if got := heard(other); got != 200 {
		t.Errorf("in another namespace: %d reports heard, want 200", got)
	}
	if got := heard(identity{1001, 1}); got != 200 {
		t.Errorf("of another user: %d reports heard, want 200", got)
	}
}

// A refused report costs nothing: who asks too often is heard all the same as
// often as anybody may be.
func TestBucketRefusalIsFree(t *testing.T) {
	clock := &hand{}
	b := newBuckets(clock.now)
	me := identity{1, 1}
	n := 0
	for range 10_000 { // in 10 s
		clock.at += time.Millisecond
		if b.take(me, costSocket) {
			n++
		}
	}
	if n < 699 || n > 700 {
		t.Errorf("%d reports heard in 10 s, want 200 + 50 a second", n)
	}
}

func TestBucketOfPeer(t *testing.T) {
	clock := &hand{}
	b := newBuckets(clock.now)
	me := identity{1, 1}
	n := 0
	for b.take(me, costPeer) {
		n++
	}
	if n != 20 {
		t.Errorf("%d reports with a peer alone heard at once, want 20", n)
	}
}

// Callers cannot make the agent grow: the one not heard of for longest goes.
func TestBucketsAreBounded(t *testing.T) {
	clock := &hand{}
	b := newBuckets(clock.now)
	first := identity{0, 7}
	for b.take(first, costSocket) {
	}
	for uid := range uint32(10_000) {
		b.take(identity{uid + 1, 8}, costSocket)
		if b.take(first, costSocket) {
			t.Fatalf("forgotten in spite of asking all the time, after %d more", uid+1)
		}
	}
	for uid := range uint32(maxBuckets) {
		b.take(identity{uid + 1, 9}, costSocket)
	}
	if len(b.of) != maxBuckets || b.recent.Len() != maxBuckets {
		t.Errorf("%d and %d buckets, want %d", len(b.of), b.recent.Len(), maxBuckets)
	}
	if !b.take(first, costSocket) {
		t.Error("not forgotten after as many others as are remembered")
	}
}
