// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/policy"
)

// The entries of the policy, each with a thousand ports. Which one a connection falls
// under is chosen by its port, and no two connections that are open at the same time
// share one: siblings would be judged with it (the scenario of siblings wants that).
const (
	anyOf    = -1 // quick, usual or patient
	quick    = 0
	usual    = 1
	patient  = 2
	guarded  = 3 // a short user timeout
	asked    = 4 // its application is asked
	watched  = 5 // what stays unanswered is judged without a report
	beating  = 6 // connections that are not judged
	capped   = 7 // no user timeout, where the kernel has TCP_RTO_MAX_MS, and fewer keepalives than attempts
	firstOf  = 20000
	portsOf  = 1000
	proxied  = 27000 // one port, which a proxy has
	proxying = 15001 // and where that listens
)

// plenty is a budget that is never used up.
const plenty = 100000

const policyText = `version: 1
defaults: {user_timeout: 20s, keepalive: {idle: 5s, interval: 2s, count: 5}}
limits: {closes_per_second: {per_peer: 100000, per_node: 100000}}
peers:
  - {name: quick, cidrs: [10.91.2.0/23, 10.91.4.0/22, "fd91:0:0:2::/63", "fd91:0:0:4::/62"], ports: [20000-20999, 27000], probe: {window: 1500ms, attempts: 3}}
  - {name: usual, cidrs: [10.91.2.0/23, 10.91.4.0/22, "fd91:0:0:2::/63", "fd91:0:0:4::/62"], ports: [21000-21999], probe: {window: 3s, attempts: 5}}
  - {name: patient, cidrs: [10.91.2.0/23, 10.91.4.0/22, "fd91:0:0:2::/63", "fd91:0:0:4::/62"], ports: [22000-22999], probe: {window: 2500ms, attempts: 4}}
  - {name: guarded, cidrs: [10.91.2.0/23, 10.91.4.0/22, "fd91:0:0:2::/63", "fd91:0:0:4::/62"], ports: [23000-23999], user_timeout: 4s, keepalive: {idle: 1s, interval: 1s, count: 3}, probe: {window: 3s, attempts: 5}}
  - {name: asked, cidrs: [10.91.2.0/23, 10.91.4.0/22, "fd91:0:0:2::/63", "fd91:0:0:4::/62"], ports: [24000-24999], probe: {window: 1500ms, attempts: 3}, app_probe: {send: {data: "ping"}, timeout: 2s}}
  - {name: watched, cidrs: [10.91.2.0/23, 10.91.4.0/22, "fd91:0:0:2::/63", "fd91:0:0:4::/62"], ports: [25000-25999], silence: 1s, probe: {window: 1500ms, attempts: 3}}
  - {name: beating, cidrs: [10.91.2.0/23, 10.91.4.0/22, "fd91:0:0:2::/63", "fd91:0:0:4::/62"], ports: [26000-26999]}
  - {name: capped, cidrs: [10.91.2.0/23, 10.91.4.0/22, "fd91:0:0:2::/63", "fd91:0:0:4::/62"], ports: [27001-27999], in_flight: auto, keepalive: {idle: 5s, interval: 5s, count: 3}, probe: {window: 3s, attempts: 5}}
`

// asking is how long an application may take.
const asking = 2 * time.Second

// silence is what the entry watched says, and a pass the time until the next look for it:
// a quarter, or longer where looking would take more than 1 % of a processor.
const (
	silence = time.Second
	pass    = silence / 2
)

// rules are the policy's probes, by entry.
func rules(t *testing.T) []policy.Probe {
	t.Helper()
	p, err := policy.Parse("policy.yaml", []byte(policyText))
	if err != nil {
		t.Fatal(err)
	}
	var out []policy.Probe
	for _, peer := range p.Peers {
		out = append(out, peer.Probe)
	}
	return out
}
