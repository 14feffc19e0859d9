// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net/netip"
	"strings"
	"testing"
)

const anyPeer = "\npeers: [{name: a, cidrs: [10.0.0.0/8]}]\n"

func TestCloseLimits(t *testing.T) {
	for text, want := range map[string]Limits{
		"":                                {50, 200},
		"limits: {}":                      {50, 200},
		"limits: {closes_per_second: {}}": {50, 200},
		"limits: {closes_per_second: {per_peer: 7}}":                {7, 200},
		"limits: {closes_per_second: {per_node: 20}}":               {20, 20}, // the default of a peer gives way
		"limits: {closes_per_second: {per_peer: 200}}":              {200, 200},
		"limits: {closes_per_second: {per_peer: 1, per_node: 1}}":   {1, 1},
		"limits: {closes_per_second: {per_node: 100000}}":           {50, 100000},
		"limits: {closes_per_second: {per_peer: 7, per_node: 100}}": {7, 100},
	} {
		if got := mustParse(t, "version: 1\n"+text+anyPeer).Limits; got != want {
			t.Errorf("%q: %+v, want %+v", text, got, want)
		}
	}
}

// A budget that is not the default stands in the explanation of what is closed.
func TestExplainLimits(t *testing.T) {
	explain := func(text string) string {
		return mustParse(t, "version: 1\n"+text+anyPeer).Explain(netip.MustParseAddrPort("10.1.1.1:80")).String()
	}
	if got := explain(""); strings.Contains(got, "budget") {
		t.Errorf("the default is told:\n%s", got)
	}
	want := "\n  budget                at most 7 closes a second to one address, 100 on the node; what exceeds it is deferred"
	if got := explain("limits: {closes_per_second: {per_peer: 7, per_node: 100}}"); strings.Count(got, want) != 2 {
		t.Errorf("%s\nlacks, in both directions:%s", got, want)
	}
}
