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
// The zero value is whole. Its owner keeps others out.
type budget struct {
	node  share
	peers map[netip.Addr]share
	swept time.Duration // when peers was last rid of those that are whole
}

// share is kept as the moment at which it is whole again: a close puts that off by the
// time between two closes. full is the last close's moment that found it whole.
type share struct{ whole, full time.Duration }

// due returns how long it is until there is a close left, 0 where there is one.
func (s share) due(now time.Duration, perSecond int) time.Duration {
	return max(0, max(s.whole, now)+gap(perSecond)-savings-now)
}

// less is the share after a close.
func (s share) less(now time.Duration, perSecond int) share {
	if s.whole <= now {
		s.full = now
	}
	s.whole = max(s.whole, now) + gap(perSecond)
	return s
}

// more is the share with a close put back that was taken then. Where it has been whole
// since, the close was made up for: another one would be beyond the limit.
func (s share) more(taken, now time.Duration, perSecond int) share {
	if s.full <= taken && s.whole > now {
		s.whole -= gap(perSecond)
	}
	return s
}

// gap is the time between two closes.
func gap(perSecond int) time.Duration { return time.Second / time.Duration(max(perSecond, 1)) }

// take takes one close to a peer out of the budget, or returns how long there is
// none.
func (b *budget) take(now time.Duration, peer netip.Addr, l policy.Limits) time.Duration {
	if wait := max(b.node.due(now, l.PerNode), b.peers[peer].due(now, l.PerPeer)); wait > 0 {
		return wait
	}
	b.sweep(now)
	if b.peers == nil {
		b.peers = make(map[netip.Addr]share)
	}
	b.node = b.node.less(now, l.PerNode)
	b.peers[peer] = b.peers[peer].less(now, l.PerPeer)
	return 0
}

// back puts back a close that was taken then and not made.
func (b *budget) back(taken, now time.Duration, peer netip.Addr, l policy.Limits) {
	b.node = b.node.more(taken, now, l.PerNode)
	if s, ok := b.peers[peer]; ok {
		b.peers[peer] = s.more(taken, now, l.PerPeer)
	}
}

// sweep forgets the peers whose share is whole, now and then.
func (b *budget) sweep(now time.Duration) {
	if now-b.swept < savings {
		return
	}
	b.swept = now
	maps.DeleteFunc(b.peers, func(_ netip.Addr, s share) bool { return s.whole <= now })
}
