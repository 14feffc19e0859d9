// SPDX-License-Identifier: Apache-2.0

package api

import (
	"container/list"
	"sync"
	"time"
)

// What reports may cost. A report that names one socket costs one token; one
// that names a peer alone makes the agent look at every socket of the namespace.
const (
	reportsPerSecond = 50
	reportsAtOnce    = 200
	costSocket       = 1
	costPeer         = 10
	maxBuckets       = 4096
)

// identity is on whose account a report goes: a user in a network namespace.
type identity struct{ uid, netns uint32 }

// buckets hold a token bucket for each of the callers heard last.
type buckets struct {
	now func() time.Duration // monotonic

	mu     sync.Mutex
	of     map[identity]*list.Element
	recent *list.List // of *bucket, the latest in front
}

// bucket has that many tokens at that time; it is never overdrawn.
type bucket struct {
	whose  identity
	tokens float64
	at     time.Duration
}

func newBuckets(now func() time.Duration) *buckets {
	return &buckets{now: now, of: make(map[identity]*list.Element), recent: list.New()}
}

// take takes tokens from the caller's bucket, and reports false where it has
// not as many. A caller that was not heard for long, or not among the last
// 4,096, has a full one: forgetting somebody costs what a burst costs, keeping
// everybody would let callers make the agent grow.
func (b *buckets) take(whose identity, tokens float64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	e := b.of[whose]
	if e == nil {
		if b.recent.Len() >= maxBuckets {
			delete(b.of, b.recent.Remove(b.recent.Back()).(*bucket).whose)
		}
		e = b.recent.PushFront(&bucket{whose: whose, tokens: reportsAtOnce, at: now})
		b.of[whose] = e
	}
	b.recent.MoveToFront(e)
	k := e.Value.(*bucket)
	k.tokens = min(reportsAtOnce, k.tokens+reportsPerSecond*(now-k.at).Seconds())
	k.at = now
	if k.tokens < tokens {
		return false
	}
	k.tokens -= tokens
	return true
}
