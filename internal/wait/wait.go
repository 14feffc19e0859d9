// SPDX-License-Identifier: Apache-2.0

package wait

import "time"

// Within receives from ch, and waits for that no longer than limit. Not ok: nothing
// came. What is there counts as in time, however late this process looks: a machine that
// stalls for longer than limit makes no work late that was done meanwhile.
func Within[T any](ch <-chan T, limit time.Duration) (v T, ok bool) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case v = <-ch:
		return v, true
	case <-timer.C:
	}
	select {
	case v = <-ch:
		return v, true
	default:
		return v, false
	}
}
