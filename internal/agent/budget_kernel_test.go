// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/agent"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

// budgeted is the patient policy with so many closes a second to one peer.
func budgeted(perPeer int) string {
	return strings.Replace(patient, "version: 1\n", fmt.Sprintf("version: 1\nlimits: {closes_per_second: {per_peer: %d}}\n", perPeer), 1)
}

// destroyed returns how many connections to the servers were closed from outside, as
// the kernel counts it.
func (b *bed) destroyed(t *testing.T) int {
	t.Helper()
	counters, err := b.Programs.Counters()
	if err != nil {
		t.Fatal(err)
	}
	k := counters["server"]
	return int(k.Closed[loader.CauseDestroyed])
}

// settled waits until nothing is judged and nobody waits for the budget.
func (b *bed) settled(t *testing.T, within time.Duration) {
	t.Helper()
	labtest.Eventually(t, within+late, func() bool {
		s := b.agent.Stats()
		return s.Judgements == 0 && s.Deferred == 0
	}, "the last deferred close")
}

// TestDeferredPaced: a pool to a dead peer is closed as the budget allows, all of
// it; one whose path heals before its turn comes is kept.
func TestDeferredPaced(t *testing.T) {
	const pool, perSecond = 30, 10 // fewer a second than a slow machine closes
	b := newBed(t, budgeted(perSecond))
	clients, _ := b.pool(t, pool)
	labtest.Fault(t)(b.DropPort(7100))
	b.silent(t, b.Client, clients[pool-1], 1200*time.Millisecond)
	first := make(chan agent.Result, 1)
	go func() {
		defer close(first) // also where it fails
		first <- b.judge(t, report(b.Client, clients[0], time.Second))
	}()
	began := time.Now() // of the first second, or some time before
	labtest.Eventually(t, 20*time.Second+pool/perSecond*time.Second+2*late, func() bool {
		before := time.Now()
		n := b.destroyed(t)
		// A close may be made half a second after it was granted, by a busy machine.
		if most := perSecond + 1 + perSecond/2 + int(perSecond*time.Since(began).Seconds()); n > most {
			t.Fatalf("%d closed %v after the first, %d are allowed", n, time.Since(began), most)
		}
		if n <= 1 {
			began = before
		}
		return n == pool
	}, "the end of the pool")
	t.Logf("%d closed within %v of the second", pool, time.Since(began))
	r := <-first
	if r.Action == agent.ActionDeferred { // before Linux 5.15 keepalives decide, which all come at one time
		r.Action = agent.ActionClosed
	}
	wantVerdict(t, r, verdict.DeadPath, "", agent.ActionClosed)
	for _, c := range clients {
		wantAborted(t, c)
	}
	b.settled(t, 0)
	closes := b.agent.Stats().Closes
	deferred := closes[agent.CloseKey{Policy: "server", Cause: agent.CauseDeadPath, Action: agent.ActionDeferred}]
	closed := closes[agent.CloseKey{Policy: "server", Cause: agent.CauseDeadPath, Action: agent.ActionClosed}]
	if deferred == 0 || closed != pool {
		t.Errorf("%d deferred, %d closed", deferred, closed)
	}
	b.healed(t)
}

// healed: a second pool, to a port that comes back as soon as some wait.
func (b *bed) healed(t *testing.T) {
	const pool = 16
	b.setPolicy(t, budgeted(2))
	clients, servers := b.poolTo(t, pool, 7101)
	fault := labtest.Fault(t)(b.DropPort(7101))
	b.silent(t, b.Client, clients[pool-1], 1200*time.Millisecond)
	before := b.destroyed(t)
	go b.agent.Judge(context.Background(), report(b.Client, clients[0], time.Second))
	labtest.Eventually(t, 5*time.Second+late, func() bool { return b.agent.Stats().Deferred >= pool/2 }, "some that wait")
	labtest.Heal(t, fault)
	b.settled(t, pool*time.Second)
	kept := 0
	for i, c := range clients {
		if alive(t, c) {
			kept++
			wantWorks(t, c, servers[i])
		}
	}
	if n := b.destroyed(t) - before; kept != pool-n || kept < pool/2 {
		t.Errorf("%d of %d were kept, the kernel closed %d; half of them at least waited for their turn when the path healed", kept, pool, n)
	}
	if n := b.agent.Stats().Verdicts[agent.VerdictKey{Policy: "server", Verdict: verdict.AliveSlow}]; int(n) < pool/2 {
		t.Errorf("%d were found alive", n)
	}
}

// alive reports whether the connection was not aborted.
func alive(t *testing.T, c *net.TCPConn) bool {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var failed error
	if err := raw.Control(func(fd uintptr) {
		_, _, failed = syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	}); err != nil {
		t.Fatal(err)
	}
	switch {
	case errors.Is(failed, syscall.EAGAIN):
		return true
	case errors.Is(failed, syscall.ECONNABORTED):
		return false
	case failed == nil:
		failed = io.EOF
	}
	t.Errorf("%s: %v", c.LocalAddr(), failed)
	return false
}
