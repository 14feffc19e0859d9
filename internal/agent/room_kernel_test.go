// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/agent"
	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

// fewKeepalives: the kernel ends a connection after three keepalives without an answer,
// and a judgement asks six times.
const fewKeepalives = `version: 1
peers:
  - name: server
    cidrs: [10.91.2.0/24]
    in_flight: rto_cap
    action: observe
    user_timeout: 40s
    keepalive: {idle: 4s, interval: 12s, count: 3}
    probe: {window: 3600ms, attempts: 6}
`

// TestLostProbesCapped: where no user timeout is set, judgements whose every keepalive is
// lost end no connection by themselves, one after the other, and after its idle time.
func TestLostProbesCapped(t *testing.T) {
	b := newBed(t, fewKeepalives)
	loadertest.Need(t, b.Programs, kernel.RTOCap)
	client, server := labtest.Pair(t, b.Lab, 0)
	exchange(t, client, server)
	drop := labtest.Fault(t)(b.DropPort(labtest.Addr(server.LocalAddr()).Port()))
	b.silent(t, b.Client, client, 1200*time.Millisecond)
	for range 2 {
		wantVerdict(t, b.judge(t, report(b.Client, client, time.Second)), verdict.DeadPath, "", agent.ActionObserved)
	}
	labtest.Heal(t, drop)
	wantWorks(t, client, server)
}
