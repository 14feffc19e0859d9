// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/policy"
)

func addrOf(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 91, byte(n >> 8), byte(n)}) }

// closesWithin takes all that a budget gives to some peers, which ask often, in a
// time.
func closesWithin(d time.Duration, peers int, l policy.Limits) (all int, of []int) {
	var b budget
	of = make([]int, peers)
	for now := time.Hour; now <= time.Hour+d; now += time.Millisecond {
		for i := range of {
			for b.take(now, addrOf(i), l) == 0 {
				of[i]++
				all++
			}
		}
	}
	return all, of
}

func TestBudget(t *testing.T) {
	for _, test := range []struct {
		name   string
		limits policy.Limits
		peers  int
		within time.Duration
		want   int
	}{
		{"a second's worth at once", policy.Limits{PerPeer: 50, PerNode: 200}, 1, 0, 50},
		{"the rate afterwards", policy.Limits{PerPeer: 50, PerNode: 200}, 1, 10 * time.Second, 550},
		{"several peers", policy.Limits{PerPeer: 50, PerNode: 200}, 3, 10 * time.Second, 3 * 550},
		{"the node ends it", policy.Limits{PerPeer: 50, PerNode: 200}, 10, 10 * time.Second, 2200},
		{"one", policy.Limits{PerPeer: 1, PerNode: 1}, 5, 10 * time.Second, 11},
		{"no divisor", policy.Limits{PerPeer: 7, PerNode: 200}, 1, 10 * time.Second, 77},
		{"none given", policy.Limits{}, 1, 10 * time.Second, 11},
	} {
		if got, of := closesWithin(test.within, test.peers, test.limits); got != test.want {
			t.Errorf("%s: %d closes within %v, want %d; by peer %v", test.name, got, test.within, test.want, of)
		}
	}
}

// What is said to be the time until the next is that.
func TestBudgetDue(t *testing.T) {
	var b budget
	l := policy.Limits{PerPeer: 10, PerNode: 15}
	now := time.Hour
	for n := 0; n < 100; {
		wait := b.take(now, addrOf(n%3), l)
		if wait == 0 {
			n++
			continue
		}
		if b.take(now+wait-1, addrOf(n%3), l) == 0 {
			t.Fatalf("close %d came sooner than was said", n)
		}
		now += wait
		if b.take(now, addrOf(n%3), l) != 0 {
			t.Fatalf("close %d did not come when it was said", n)
		}
		n++
	}
}

func TestBudgetBack(t *testing.T) {
	var b budget
	l := policy.Limits{PerPeer: 5, PerNode: 8}
	for b.take(time.Hour, addrOf(1), l) == 0 {
	}
	b.back(time.Hour, time.Hour, addrOf(1), l)
	if b.take(time.Hour, addrOf(1), l) != 0 || b.take(time.Hour, addrOf(1), l) == 0 {
		t.Error("what was put back is not there once")
	}
	if b.back(time.Hour, time.Hour, addrOf(2), l); b.take(time.Hour, addrOf(2), l) != 0 {
		t.Error("a peer without a share has none")
	}
}

// What was made up for by waiting is not put back once more.
func TestBudgetBackLate(t *testing.T) {
	var b budget
	l := policy.Limits{PerPeer: 50, PerNode: 50}
	all := func(now time.Duration) (n int) {
		for b.take(now, addrOf(1), l) == 0 {
			n++
		}
		return n
	}
	taken, late := time.Hour, time.Hour+3*time.Second
	all(taken)
	got := all(late)
	for range 50 {
		b.back(taken, late, addrOf(1), l)
	}
	if got += all(late); got != 50 {
		t.Errorf("%d closes at once, want 50", got)
	}
	soon := late + 500*time.Millisecond
	all(soon)
	b.back(late, soon, addrOf(1), l)
	if n := all(soon); n != 1 {
		t.Errorf("%d of what was put back in time, want 1", n)
	}
}

// A budget keeps nobody whose share is whole again.
func TestBudgetForgets(t *testing.T) {
	var b budget
	l := policy.Limits{PerPeer: 50, PerNode: 200}
	now := time.Hour
	for i := range 100_000 {
		now += 5 * time.Millisecond
		b.take(now, addrOf(rand.IntN(1<<16)), l)
		if len(b.peers) > 500 {
			t.Fatalf("%d peers after %d closes", len(b.peers), i)
		}
	}
}
