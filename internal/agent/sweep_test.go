// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/policy"
)

// services adds dead connections: each service of the peer has as many.
func (w *world) services(n, each int) {
	w.pol.Limits = policy.Limits{PerPeer: 10_000, PerNode: 10_000}
	for i := range uint64(n * each) {
		w.add(i+1, 10*time.Second, nil)
		s := &w.sockets[i+1].snap
		s.Remote = netip.AddrPortFrom(s.Remote.Addr(), uint16(7100+i%uint64(n)))
	}
}

// TestManyServices: where many services die at once the siblings of each are judged, and
// are looked for by few walks.
func TestManyServices(t *testing.T) {
	bubble(t, "at once", func(t *testing.T, w *world, a *Agent) {
		const n, each = 100, 3
		w.services(n, each)
		w.scanTime = 100 * time.Millisecond
		var reported []uint64
		for c := range uint64(n) {
			reported = append(reported, c+1)
		}
		wantAll(t, w.reported(t, a, reported...), ActionClosed)
		w.settled(t, a, time.Minute)
		if w.destroyed() != n*each || w.scans > 10 || a.Stats().SweepsFailed != 0 {
			t.Errorf("%d of %d destroyed, %d walks, %d sweeps failed", w.destroyed(), n*each, w.scans, a.Stats().SweepsFailed)
		}
	})
}

// TestSweepAgain: a sweep that did not come about is made a little later, and is given
// up, and counted, where that does not help.
func TestSweepAgain(t *testing.T) {
	const services, each = 3, 2
	for _, test := range []struct {
		name string
		err  error
		took time.Duration // of a walk
		full bool
		ends time.Duration // after the report
		want int           // closed
		lost uint64
	}{
		{"held up", nil, 3 * time.Second, false, 10 * time.Second, services * each, 0},
		{"no place", nil, 0, true, 10 * time.Second, services * each, 0},
		{"the kernel fails", errors.New("not today"), 0, false, 10 * time.Second, services * each, 0},
		{"never", errors.New("not today"), 0, false, time.Hour, services, services},
		{"no place ever", nil, 0, true, time.Hour, services, services},
		{"the kernel cannot walk", loader.ErrUnsupported, 0, false, 4 * time.Second, services, services},
	} {
		bubble(t, test.name, func(t *testing.T, w *world, a *Agent) {
			w.services(services, each)
			a.outlook.connected = w.now() + time.Hour // no survey is due
			w.scanErr, w.scanTime = test.err, test.took
			empty := func() {}
			if test.full {
				empty = w.fill(a)
			}
			began := w.now()
			wantAll(t, w.reported(t, a, 1, 2, 3), ActionClosed)
			time.Sleep(began + test.ends - w.now())
			w.mu.Lock()
			w.scanErr, w.scanTime = nil, 0
			w.mu.Unlock()
			empty()
			time.Sleep(time.Minute)
			if n := a.Stats().SweepsFailed; w.destroyed() != test.want || n != test.lost {
				t.Errorf("%d destroyed, %d sweeps failed; want %d and %d", w.destroyed(), n, test.want, test.lost)
			}
			a.mu.Lock()
			defer a.mu.Unlock()
			if len(a.sweeps) > 0 || len(a.sweeping) > 0 || len(a.walks) > 0 {
				t.Errorf("left: %v, %v, %v", a.sweeps, a.sweeping, a.walks)
			}
		})
	}
}
