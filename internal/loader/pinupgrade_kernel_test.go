// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"errors"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
)

// TestUpgrade: a build with longer records and other counters takes over from one
// with shorter: with many live connections, and a client that opens more all the
// time, none loses its record or its bound, and no count is lost.
func TestUpgrade(t *testing.T) {
	b := newPinBed(t)
	old := b.start(t, loader.LoadOlder, loadertest.Fast)
	began := conn.Now()
	live := make([]*net.TCPConn, labtest.Fewer(500))
	for i := range live {
		live[i] = b.dial(t, i%2 == 1) // every other with Go's keepalive, which only the record knows of
	}
	ended := conn.Now()
	before := mustCounters(t, old.Programs, "server")
	links := b.linkIDs(t)
	old.mustStop(t)
	client := startClient(b)
	a := b.start(t, loadPinned, manyPeers)
	opened, errs := client.stop()
	for _, err := range errs {
		t.Error(err) // also without walks
	}
	loadertest.Need(t, a.Programs, kernel.Scan)
	took := a.Takeover()
	t.Logf("%d connections opened meanwhile, %d records taken over", opened, took.Converted)
	if took.Lost != nil || took.Converted < uint64(len(live)) || took.Moved || b.linkIDs(t) != links {
		t.Errorf("took over %+v", took)
	}
	b.wantTakenOver(t, a, live, began, ended)
	after := mustCounters(t, a.Programs, "server")
	if want := before.OpenedOutbound + uint64(opened); after.OpenedOutbound != want {
		t.Errorf("%d connections counted, want %d", after.OpenedOutbound, want)
	}
	if after.OverrideHeld < before.OverrideHeld || before.OverrideHeld == 0 {
		t.Errorf("%d overrides held, before %d", after.OverrideHeld, before.OverrideHeld)
	}
	// The bound is held on them still, and their end is counted.
	labtest.Setsockopt(t, live[0], unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 0)
	if o := labtest.Options(t, live[0]); o.UserTimeout != fast.UserTimeout {
		t.Errorf("a connection has %+v", o)
	}
	for _, c := range live {
		c.SetLinger(0)
		c.Close()
	}
	labtest.Eventually(t, late, func() bool {
		return mustCounters(t, a.Programs, "server").Open() == before.Open()-uint64(len(live))
	}, "the closes counted")
	wantNoFaults(t, a.Programs)

	// The next start finds nothing to take over.
	a.mustStop(t)
	a = b.start(t, loadPinned, loadertest.Fast)
	if took := a.Takeover(); took.Converted != 0 || took.Lost != nil || took.Swept != nil {
		t.Errorf("took over %+v", took)
	}
}

// wantTakenOver: the records of live, which opened from began to ended, say what they did.
func (b *pinBed) wantTakenOver(t *testing.T, a agent, live []*net.TCPConn, began, ended time.Duration) {
	t.Helper()
	for i, c := range live {
		got, ok := b.record(t, a.Programs, c)
		app := conn.Options{Idle: 15 * time.Second, Interval: 15 * time.Second, Count: 9, KeepAlive: true}
		if i%2 == 0 {
			app = conn.Options{}
		}
		if !ok || a.InForce().Peer(got.Policy).Name != "server" || got.Policed != fast || got.App != app ||
			got.Effective != labtest.Options(t, c) || got.Opened < began || got.Opened > ended {
			t.Fatalf("connection %d: record %+v, %v, options %+v", i, got, ok, labtest.Options(t, c))
		}
	}
}

// TestUpgradeWithoutWalks: where no walk can reach the records the start says so;
// the programs take each over when they meet its connection, over restarts, too.
func TestUpgradeWithoutWalks(t *testing.T) {
	b := newPinBed(t)
	old := b.start(t, loader.LoadOlder, loadertest.Fast)
	c, second := b.dial(t, false), b.dial(t, false)
	old.mustStop(t)
	a := b.start(t, loadPinned, loadertest.Fast)
	if loadertest.Has(t, a.Programs, kernel.Scan) {
		t.Skip("this kernel can")
	}
	for _, one := range []*net.TCPConn{c, second} {
		if took := a.Takeover(); !errors.Is(took.Lost, loader.ErrUnsupported) || took.Converted != 0 {
			t.Errorf("took over %+v", took)
		}
		wantOptions(t, "the connection", one, fast)
		labtest.Setsockopt(t, one, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 0)
		wantOptions(t, "after its application has spoken", one, fast)
		rec, ok := b.record(t, a.Programs, one)
		if !ok || rec.Policed != fast || a.InForce().Peer(rec.Policy).Name != "server" {
			t.Errorf("record %+v, %v", rec, ok)
		}
		wantOptions(t, "a new one", b.dial(t, false), fast)
		a.mustStop(t)
		a = b.start(t, loadPinned, loadertest.Fast)
	}
}
