// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/agent"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

// TestServicesDieTogether: a peer dies with all its services, and one connection of each
// is reported at once. The siblings of all are judged, beside many sockets of others.
func TestServicesDieTogether(t *testing.T) {
	services, each := 32, 3
	if testing.Short() { // on an emulated machine: more than walks may be under way
		services, each = 12, 2
	}
	b := newBed(t, budgeted(services*each))
	b.poolTo(t, labtest.Fewer(1000), 7000)
	all := make([][]*net.TCPConn, services)
	for i := range all {
		all[i], _ = b.poolTo(t, each, uint16(7100+i))
	}
	for i := range all {
		labtest.Fault(t)(b.DropPort(uint16(7100 + i)))
	}
	b.silent(t, b.Client, all[services-1][each-1], 1200*time.Millisecond)
	var reported sync.WaitGroup
	for _, service := range all {
		reported.Go(func() {
			r, err := b.agent.Judge(context.Background(), report(b.Client, service[0], time.Second))
			if err != nil || len(r) != 1 || r[0].Verdict != verdict.DeadPath || r[0].Action != agent.ActionClosed {
				t.Errorf("%+v, %v; want dead_path, closed", r, err)
			}
		})
	}
	reported.Wait()
	until, left := time.Now().Add(time.Minute), 0 // each has a window of its own
	for _, service := range all {
		for _, c := range service {
			c.SetReadDeadline(time.Now().Add(max(time.Until(until), 10*time.Millisecond)))
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNABORTED) {
				left++
			}
		}
	}
	if n := b.agent.Stats().SweepsFailed; left > 0 || n > 0 {
		t.Errorf("%d of %d connections are left, %d sweeps failed", left, services*each, n)
	}
}
