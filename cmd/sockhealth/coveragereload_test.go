// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/sockhealth/sockhealth/internal/api"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
)

// TestCoverageReload: what was found under another policy is not told as this one's,
// and a scan of this one comes soon.
func TestCoverageReload(t *testing.T) {
	a := newRunAgent(t)
	a.write(t, coveragePolicy)
	a.more = append(a.more, "--scan-interval", "1h")
	a.start(t)
	labtest.Pair(t, a.Lab, 7102)
	var s api.Status
	scanned := func() bool {
		s = a.status(t)
		return s.Coverage.Scanned != nil && s.Coverage.Revision == s.Policy.Revision
	}
	labtest.Eventually(t, coverageLate, scanned, "the first scan")
	first := *s.Coverage.Scanned
	a.write(t, strings.ReplaceAll(coveragePolicy, "name: left", "name: renamed"))
	labtest.Eventually(t, coverageLate, func() bool {
		s = a.status(t)
		return s.Policy.Revision != s.Coverage.Revision
	}, "the reload")
	reloaded := s.Policy
	if s.Coverage.Scanned.Equal(first) {
		for i := range s.Peers {
			if p := &s.Peers[i]; p.Expected != 0 {
				t.Errorf("told of a policy that was not scanned: %+v", p)
			}
		}
		stdout, _, _ := a.output(t, a.ns, "status", "--run-dir", "run")
		if !strings.Contains(stdout, "coverage     not known for this policy yet") {
			t.Errorf("status:\n%s", stdout)
		}
	}
	labtest.Eventually(t, coverageLate, scanned, "a scan of the new policy")
	if s.Policy.Revision != reloaded.Revision || !s.Coverage.Scanned.After(first) {
		t.Errorf("%+v, %+v", s.Policy, s.Coverage)
	}
	if p := a.peer(t, "renamed"); p.Expected != 1 {
		t.Errorf("got %+v", p)
	}
}
