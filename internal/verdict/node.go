// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"slices"
	"time"
)

// LeastPeers is how many it takes to tell this node's fault from theirs.
const LeastPeers = 5

// Connected returns as of when it is certain that this node reaches its peers,
// given when each was heard last and what time it is: the latest moment since which
// more than a fifth of them was heard. Fewer than least tell nothing against the
// node, and the moment is now.
//
// Where that is before a connection was asked in vain, at least four fifths of the peers
// have been silent for as long, and it is the node.
func Connected(heard []time.Duration, least int, now time.Duration) time.Duration {
	if len(heard) < max(least, 1) {
		return now
	}
	latest := slices.Sorted(slices.Values(heard))
	slices.Reverse(latest)
	return latest[len(latest)/5]
}
