// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/netns"
)

// Probe judges the socket of a look as if a call had just been written on it,
// and closes nothing, whatever the verdict. It blocks as long as Judge does, and
// its errors are those of Judge.
func (a *Agent) Probe(ctx context.Context, ns *netns.NS, s conn.Snapshot) (Result, error) {
	if !a.covers(ns) {
		return Result{}, fmt.Errorf("probe %s: %w", s.ID, ErrForbidden)
	}
	r, err := a.judge(ctx, &call{ns: ns, sent: a.Now(), reporter: reporterAdmin}, s)
	if err != nil {
		return Result{}, fmt.Errorf("probe %s: %w", s.ID, err)
	}
	return r, nil
}
