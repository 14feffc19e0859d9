// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/sockhealth/sockhealth/internal/coverage"
)

// What helps depends on where the connection was made, and on what adoption may do.
func TestRemedyOf(t *testing.T) {
	const reload, cgroup, anew, adopt, linux = "sockhealth reload", "--cgroup that its process is in, too (now /cg)", "connect anew", "existing: adopt", "Linux 5.15 adopts it"
	all := []string{reload, cgroup, anew, adopt, linux}
	for _, tc := range []struct {
		reason       coverage.Reason
		adopts, left bool
		want         []string
	}{
		{coverage.Older, true, false, []string{reload}},
		{coverage.NotInCgroup, true, false, []string{reload, cgroup}},
		{coverage.Older, false, false, []string{anew, linux}},
		{coverage.NotInCgroup, false, false, []string{cgroup, anew, linux}},
		{coverage.Ignored, false, true, []string{anew, adopt}},
		{coverage.NotInCgroup, false, true, []string{cgroup, anew, adopt}},
	} {
		got := remedyOf(tc.reason, "/cg", tc.adopts, tc.left)
		want := strings.Join(tc.want, "|")
		for _, word := range all {
			if strings.Contains(got, word) != strings.Contains(want, word) {
				t.Errorf("%s, adopts %v, left %v: %q, want of %q: %s", tc.reason, tc.adopts, tc.left, got, word, want)
			}
		}
	}
}
