// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
)

// manyPeers is a policy in which the entry of loadertest.Fast stands last.
const manyPeers = `version: 1
defaults:
  user_timeout: 3s
  keepalive: {idle: 1s, interval: 1s, count: 2}
peers:
  - {name: a, cidrs: [10.92.0.0/24]}
  - {name: b, cidrs: [10.93.0.0/24]}
  - {name: server, cidrs: [10.91.2.0/24, "fd91:0:0:2::/64"]}
`

// TestRestart: ids, counters and records go over to the next agent, which swaps
// the programs in their links.
func TestRestart(t *testing.T) {
	b := newPinBed(t)
	a := b.start(t, loadPinned, loadertest.Fast)
	if a.Takeover().Links || a.Unattended() != 0 {
		t.Errorf("the first start took over %+v", a.Takeover())
	}
	before := b.dial(t, false)
	rec, ok := b.record(t, a.Programs, before)
	revision, links, maps := a.InForce().Policy.Revision, b.linkIDs(t), make(map[string]ebpf.MapID)
	for _, name := range whole {
		if strings.HasPrefix(name, "sh_") {
			maps[name] = b.mapID(t, name)
		}
	}
	if !ok {
		t.Fatal("no record")
	}
	a.mustStop(t)
	stopped := time.Now()
	between := b.dial(t, false)
	labtest.Eventually(t, late, func() bool { return time.Since(stopped) > 300*time.Millisecond }, "time without an agent")

	a = b.start(t, loadPinned, manyPeers)
	took := a.Takeover()
	if !took.Links || took.Revision != revision || took.Moved || took.Lost != nil || took.Converted != 0 || took.Swept != nil {
		t.Errorf("took over %+v", took)
	}
	if took.Unattended < 300*time.Millisecond || took.Unattended > time.Since(stopped) || a.Unattended() != took.Unattended {
		t.Errorf("unattended for %v", took.Unattended)
	}
	if got := b.linkIDs(t); got != links {
		t.Errorf("links %v, want the same %v", got, links)
	}
	for name, id := range maps {
		if got := b.mapID(t, name); got != id {
			t.Errorf("%s is map %d, want the same %d", name, got, id)
		}
	}
	if got, _ := b.record(t, a.Programs, before); got != rec {
		t.Errorf("record %+v, want %+v", got, rec)
	}
	for what, c := range map[string]*net.TCPConn{"before": before, "between": between, "after": b.dial(t, false)} {
		if got, ok := b.record(t, a.Programs, c); !ok || a.InForce().Peer(got.Policy).Name != "server" || got.Policy != rec.Policy {
			t.Errorf("%s: record %+v, %v", what, got, ok)
		}
		wantOptions(t, what, c, fast)
	}
	if c := mustCounters(t, a.Programs, "server"); c.OpenedOutbound != 3 {
		t.Errorf("%d connections counted, want 3", c.OpenedOutbound)
	}
	before.SetLinger(0)
	before.Close()
	labtest.Eventually(t, late, func() bool { return mustCounters(t, a.Programs, "server").Open() == 2 }, "the close counted")
	wantNoFaults(t, a.Programs)
	b.wantCountersBack(t, a)
}

// wantCountersBack: a name that comes back after a restart without it has its counters still.
func (b *pinBed) wantCountersBack(t *testing.T, a agent) {
	t.Helper()
	a.mustStop(t)
	a = b.start(t, loadPinned, "version: 1\npeers: [{name: fresh, cidrs: [10.94.0.0/24]}]\n")
	if c := mustCounters(t, a.Programs, "fresh"); c != (loader.Counters{}) {
		t.Errorf("a new name has %+v", c)
	}
	a.mustStop(t)
	a = b.start(t, loadPinned, manyPeers)
	if c := mustCounters(t, a.Programs, "server"); c.OpenedOutbound != 3 {
		t.Errorf("%d connections counted, want 3", c.OpenedOutbound)
	}
}
