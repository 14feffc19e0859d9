// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/coverage"
	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/policy"
)

// unrecorded says why a connection that an entry of the policy names has no record, and
// what helps; the second is "" where nothing does.
func (a *admin) unrecorded(ctx context.Context, s *conn.Snapshot, rule *policy.Peer) (coverage.Reason, string) {
	reason := coverage.Unrecorded(s, rule)
	if reason == coverage.Kernel {
		return reason, "write kernel_sockets: manage if it is to be bounded all the same"
	}
	if reason != coverage.Older {
		return reason, ""
	}
	// Where that cannot be told it is as good as inside.
	outside, err := coverage.Outside(ctx, a.cgroup, s.Cgroup)
	if err == nil && outside {
		reason = coverage.NotInCgroup
	} else if rule.LeaveExisting {
		reason = coverage.Ignored
	}
	return reason, remedyOf(reason, a.cgroup, a.programs.Lacks(kernel.Adopt) == nil && !rule.LeaveExisting, rule.LeaveExisting)
}

// remedyOf says what brings a connection without a record under its rule. adopts says
// that adoption will, left that the rule keeps it from that.
func remedyOf(reason coverage.Reason, cgroup string, adopts, left bool) string {
	anew := "have its application connect anew"
	if reason == coverage.NotInCgroup {
		anew = fmt.Sprintf("start the agent with a --cgroup that its process is in, too (now %s), or move the process there, and have it connect anew", cgroup)
	}
	switch {
	case adopts && reason == coverage.NotInCgroup:
		return fmt.Sprintf(`adoption brings it in line at its next round, in some 5 minutes, or at once after "sockhealth reload"; for a bound from the first packet on start the agent with a --cgroup that its process is in, too (now %s)`, cgroup)
	case adopts:
		return `adoption brings it in line at its next round, in some 5 minutes, or at once after "sockhealth reload"`
	case left:
		return "write existing: adopt, or " + anew
	}
	return fmt.Sprintf("%s; Linux %s adopts it as it is", anew, kernel.Adopt.Since())
}
