// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/test/vm/guest"
)

// endOf returns when to be done, from what guest.Seconds says. Programs do not see it.
func endOf(seconds string) (time.Time, error) {
	since, err := strconv.Atoi(seconds)
	if err != nil {
		return time.Time{}, fmt.Errorf("read %s: %w", guest.Seconds, err)
	}
	if err := os.Unsetenv(guest.Seconds); err != nil {
		return time.Time{}, err
	}
	var up unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &up); err != nil {
		return time.Time{}, fmt.Errorf("read the time since the start: %w", err)
	}
	return time.Now().Add(time.Duration(since)*time.Second - time.Duration(up.Nano())), nil
}
