// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"time"

	"golang.org/x/sys/unix"
)

// Now returns CLOCK_MONOTONIC, the clock of every age and moment in sockhealth
// and of bpf_ktime_get_ns. It never jumps, and stands still during suspend.
func Now() time.Duration { return read(unix.CLOCK_MONOTONIC) }

// Boot returns CLOCK_BOOTTIME, which never jumps either and goes on during suspend.
// It is no measure of age: peers and timers know nothing of it.
func Boot() time.Duration { return read(unix.CLOCK_BOOTTIME) }

// ThreadCPU is how much CPU the calling thread has used.
func ThreadCPU() time.Duration { return read(unix.CLOCK_THREAD_CPUTIME_ID) }

func read(clock int32) time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(clock, &ts); err != nil {
		panic("clock_gettime: " + err.Error()) // cannot fail on Linux
	}
	return time.Duration(ts.Nano())
}
