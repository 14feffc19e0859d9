// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"strings"

	"github.com/sockhealth/sockhealth/internal/lab"
)

// callDefaults are far from what is played: whatever probes or ends a
// connection meanwhile is a judgement, not the kernel's bound.
const callDefaults = `version: 1
defaults:
  user_timeout: 60s
  keepalive: {idle: 20s, interval: 5s, count: 5}
  probe: {window: %s, attempts: %d}
peers:
`

// callPolicy is the policy of the call incident: an entry for each case, whose
// peer is the server of the same index, and one for the peer that is well.
func callPolicy(cases []callCase, servers []lab.Host) string {
	var b strings.Builder
	fmt.Fprintf(&b, callDefaults, callWindow, callAttempts)
	entry := func(name string, host lab.Host) {
		fmt.Fprintf(&b, "  - name: %s\n    cidrs: [%s]\n    ports: [%d]\n", name, lab.Only(host.Addr4), callPort)
	}
	for i, c := range cases {
		entry(fmt.Sprintf("case%d", i), servers[i])
		if c.asks {
			fmt.Fprintf(&b, "    app_probe: {http: {port: %d, path: /healthz}, timeout: %s}\n", healthPort, appTimeout)
		}
	}
	entry("other", servers[len(cases)])
	return b.String()
}
