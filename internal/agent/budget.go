// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"maps"
	"net/netip"
	"time"

	"github.com/sockhealth/sockhealth/internal/policy"
)

// savings is how much may be saved up: what comes in in that time.
const savings = time.Second

// budget says how many closes are left, for each peer's address and for the node.
// What is kept for each is the moment at which its share is whole again: a close
// puts it off by the time between two closes. The zero value is whole. Its owner
// keeps others out.
type budget struct {
	node  time.Duration
	peers map[netip.Addr]time.Duration
	swept time.Duration // when peers was last rid of those that are whole
}

// due returns how long it is until there is a close left in a share that is whole
// at that moment, 0 where there is one.
func due(whole, now time.Duration, perSecond int) time.Duration {
	return max(0, max(whole, now)+gap(perSecond)-savings-now)
}

// gap is the time between two closes.
func gap(perSecond int) time.Duration { return time.Second / time.Duration(max(perSecond, 1)) }

// take takes one close to a peer out of the budget, or returns how long there is
// none.
func (b *budget) take(now time.Duration, peer netip.Addr, l policy.Limits) time.Duration {
	if wait := max(due(b.node, now, l.PerNode), due(b.peers[peer], now, l.PerPeer)); wait > 0 {
		return wait
	}
	b.sweep(now)
	if b.peers == nil {
		b.peers = make(map[netip.Addr]time.Duration)
	}
	b.node = max(b.node, now) + gap(l.PerNode)
	b.peers[peer] = max(b.peers[peer], now) + gap(l.PerPeer)
	return 0
}

// back puts back a close that was taken and not made.
func (b *budget) back(peer netip.Addr, l policy.Limits) {
	b.node -= gap(l.PerNode)
	if whole, ok := b.peers[peer]; ok {
		b.peers[peer] = whole - gap(l.PerPeer)
	}
}

// sweep forgets the peers whose share is whole, now and then.
func (b *budget) sweep(now time.Duration) {
	if now-b.swept < savings {
		return
	}
	b.swept = now
	maps.DeleteFunc(b.peers, func(_ netip.Addr, whole time.Duration) bool { return whole <= now })
}
