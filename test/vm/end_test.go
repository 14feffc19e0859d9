// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/test/vm/guest"
)

const panicLog = `[    1.9] Run /init as init process
[   58.8] Kernel panic - not syncing: Attempted to kill init! exitcode=0x00000200
[   58.9] Call Trace:
`

func TestConclude(t *testing.T) {
	for _, tc := range []struct {
		name, said, log string
		timedOut        bool
		status          int
		err             string // "" for none
	}{
		{name: "well", said: "0\n"},
		{name: "the program's status", said: "3\n", status: 3},
		{name: "well at the last moment", said: "0\n", timedOut: true},
		{name: "time-out", timedOut: true, status: guest.StatusTimeout, err: "ended after 1m0s"},
		{name: "crash", log: panicLog, status: guest.StatusFailed, err: "Kernel panic"},
		{name: "hung after a crash", log: panicLog, timedOut: true, status: guest.StatusFailed, err: "Kernel panic"},
		{name: "ended without a word", status: guest.StatusFailed, err: "without a status"},
		{name: "half a word", said: "x", status: guest.StatusFailed, err: "without a status"},
		{name: "not run", said: "125\n", log: "init: no such file", status: guest.StatusFailed, err: "init: no such file"},
		{name: "the program's own 127", said: "127\n", log: "[ 0.9] init: booted\n", status: guest.StatusNoStart},
		{name: "not started", said: "127\n", log: "[ 0.9] init: booted\n[ 0.9] init: fork/exec /vm/x: no such file or directory\n", status: guest.StatusNoStart, err: "not be started: fork/exec /vm/x"},
		{name: "the program's own 124", said: "124\n", log: "[ 0.9] init: booted\n", status: guest.StatusTimeout},
		{name: "late", said: "124\n", log: "[ 0.9] init: booted\n[ 9.9] init: /vm/x did not end in time\n", status: guest.StatusTimeout, err: "/vm/x did not end in time, which is 1m0s"},
		{name: "late after one that failed", said: "1\n", log: "[ 9.9] init: /vm/x did not end in time\n", status: 1, err: "/vm/x did not end in time"},
		{name: "well, but the kernel is not", said: "0\n", log: "[  9.1] BUG: kernel NULL pointer dereference\n", status: guest.StatusFailed, err: "NULL pointer"},
		{name: "a warning", said: "0\n", log: "[  9.1] WARNING: lib/refcount.c:28 at refcount_warn_saturate+0x1/0x2\n", status: guest.StatusFailed, err: "refcount.c"},
		{name: "a warning of older kernels", said: "0\n", log: "[  9.1] WARNING: CPU: 1 PID: 7 at net/core/dev.c:1\n", status: guest.StatusFailed, err: "dev.c"},
		{name: "chatter", said: "0\n", log: "[ 0.8] mtrr: your CPUs had inconsistent MTRRdefType settings\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			status, err := conclude(tc.said, tc.log, tc.timedOut, time.Minute)
			if status != tc.status || (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("status %d, %v; want %d, %q", status, err, tc.status, tc.err)
			}
		})
	}
}

// Of a long kernel log the error shows where the trouble is, or how it ends.
func TestExcerpt(t *testing.T) {
	var lines []string
	for n := range 1000 {
		lines = append(lines, fmt.Sprintf("[ 1.%03d] line", n))
	}
	lines[100] = "[ 1.100] BUG: it"
	for _, tc := range []struct{ trouble, first, last string }{
		{"[ 1.100] BUG: it", lines[100], "... and 840 lines more"},
		{"", lines[940], lines[999]},
	} {
		got := strings.Split(excerpt(strings.Join(lines, "\n")+"\n", tc.trouble), "\n")
		if got[0] != tc.first || got[len(got)-1] != tc.last || len(got) > logLines+1 {
			t.Errorf("%q: %d lines, from %q to %q; want %q to %q", tc.trouble, len(got), got[0], got[len(got)-1], tc.first, tc.last)
		}
	}
	if got := excerpt("boot\nBUG: it\nCall Trace:\n", "BUG: it"); got != "BUG: it\nCall Trace:" {
		t.Errorf("of a short one: %q", got)
	}
}
