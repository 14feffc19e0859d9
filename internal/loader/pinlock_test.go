// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"slices"
	"testing"
)

func TestLockedBy(t *testing.T) {
	const locks = "1: POSIX  ADVISORY  WRITE 11 00:1c:5678 0 EOF\n" +
		"2: -> FLOCK  ADVISORY  WRITE 12 00:1c:5678 0 EOF\n" +
		"3: FLOCK  ADVISORY  WRITE 13 00:1c:56789 0 EOF\n" +
		"4: FLOCK  ADVISORY  WRITE 14 00:1c:5678 0 EOF\n" +
		"5: FLOCK  ADVISORY  READ  15 00:1c:9 0 EOF\n" +
		"6: FLOCK  ADVISORY  READ  -1 00:1c:9 0 EOF\n"
	for file, want := range map[string][]int{"00:1c:5678": {14}, "00:1c:56789": {13}, "00:1c:9": {15, 0}, "00:1d:5678": nil} {
		if got := lockedBy(locks, file); !slices.Equal(got, want) {
			t.Errorf("%s is locked by %v, want %v", file, got, want)
		}
	}
}

func TestStartTicks(t *testing.T) {
	const stat = "1234 (a) b 7) S 1 1234 1234 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 4096 0 1844\n"
	if got, ok := startTicks(stat); got != 98765 || !ok {
		t.Errorf("got %d, %v", got, ok)
	}
	for _, bad := range []string{"", "1234 (a) S 1 2", "1234 (a) S 1 1 1 0 -1 1 1 2 3 4 5 6 7 8 20 0 1 0 x 4096"} {
		if got, ok := startTicks(bad); ok {
			t.Errorf("%q: got %d", bad, got)
		}
	}
}
