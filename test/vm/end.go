// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sockhealth/sockhealth/test/vm/guest"
)

// logLines is how many lines of the kernel log an error shows.
const logLines = 60

// conclude tells how a machine ended, from what it said on its ports.
func conclude(said, log string, timedOut bool, timeout time.Duration) (int, error) {
	trouble := troubleIn(log)
	status, err := strconv.Atoi(strings.TrimSpace(said))
	if err == nil && trouble == "" && status != guest.StatusFailed {
		return status, explain(log, timeout)
	}
	var what string
	switch {
	case trouble != "":
		status, what = guest.StatusFailed, "the kernel said "+strconv.Quote(trouble)
	case err == nil:
		what = "the machine could not run the program"
	case timedOut:
		status, what = guest.StatusTimeout, fmt.Sprintf("the machine was ended after %s", timeout)
	default:
		status, what = guest.StatusFailed, "the machine ended without a status"
	}
	return status, fmt.Errorf("%s; kernel log:\n%s", what, excerpt(log, trouble))
}

// What the first process says of a program that does not start, and of one that does
// not end.
var (
	noStart = regexp.MustCompile(`init: ((?:fork/exec|exec|chdir) .*)`)
	noEnd   = regexp.MustCompile(`init: (.* did not end in time)`)
)

// explain returns what the first process said of the programs, nil where it said nothing:
// their statuses are their own then.
func explain(log string, timeout time.Duration) error {
	if why := noStart.FindStringSubmatch(log); why != nil {
		return fmt.Errorf("the program could not be started: %s", why[1])
	}
	if why := noEnd.FindStringSubmatch(log); why != nil {
		return fmt.Errorf("%s, which is %s for the whole machine; SIGQUIT made it say where it was", why[1], timeout)
	}
	return nil
}

// trouble is what a kernel says when it has a fault.
var trouble = regexp.MustCompile(`Kernel panic|BUG: |Oops|general protection fault|KASAN|` +
	`WARNING: (CPU|\S+\.[chS]:\d+)|blocked for more than|rcu: INFO: .* stall|unregister_netdevice: waiting`)

// troubleIn returns the first line of a kernel log that tells of a fault of the
// kernel, "" without one.
func troubleIn(log string) string {
	for line := range strings.Lines(log) {
		if trouble.MatchString(line) {
			return strings.TrimSpace(line)
		}
	}
	return ""
}

// excerpt returns logLines of a kernel log: from the line of trouble on, or the last
// where trouble is "".
func excerpt(log, trouble string) string {
	lines := strings.Split(strings.TrimRight(log, "\n"), "\n")
	if trouble == "" {
		return strings.Join(lines[max(0, len(lines)-logLines):], "\n")
	}
	at := slices.IndexFunc(lines, func(line string) bool { return strings.TrimSpace(line) == trouble })
	lines = lines[max(0, at):]
	if more := len(lines) - logLines; more > 0 {
		lines = append(lines[:logLines:logLines], fmt.Sprintf("... and %d lines more", more))
	}
	return strings.Join(lines, "\n")
}
