// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"time"

	"golang.org/x/sys/unix"
)

// Now returns CLOCK_MONOTONIC, the clock of every age and moment in sockhealth
// and of bpf_ktime_get_ns. It never jumps, and stands still during suspend.
func Now() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic("clock_gettime(CLOCK_MONOTONIC): " + err.Error()) // cannot fail on Linux
	}
	return time.Duration(ts.Nano())
}
