// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/agent"
	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

// bounded is a policy whose bounds strike some time after a judgement.
const bounded = `version: 1
defaults:
  user_timeout: 15s
  keepalive: {idle: 4s, interval: 2s, count: 5}
  probe: {window: 1500ms, attempts: 3}
peers:
  - name: server
    cidrs: [10.91.2.0/24]
`

// TestClosedOrBounded: where this kernel can close by neither way a dead connection is
// found all the same and not closed, and the kernel's own bound ends it. Where it can,
// it is closed.
func TestClosedOrBounded(t *testing.T) {
	b := newBed(t, bounded)
	b.closedOrBounded(t, loadertest.Has(t, b.Programs, kernel.BPFDestroy) || !labtest.Without("destroy"))
}

// TestNoDiagDestroy: so it is where inet_diag finds connections and destroys none.
func TestNoDiagDestroy(t *testing.T) {
	labtest.NoDiagDestroy(t)
	b := newBed(t, bounded)
	b.closedOrBounded(t, loadertest.Has(t, b.Programs, kernel.BPFDestroy))
}

// closedOrBounded judges dead connections, which the kernel can close or not.
func (b *bed) closedOrBounded(t *testing.T, closes bool) {
	t.Helper()
	for name, sends := range map[string]bool{"in flight": true, "idle": false} {
		t.Run(name, func(t *testing.T) {
			client, server := labtest.Pair(t, b.Lab, 0)
			bystander, bystanderPeer := labtest.Pair(t, b.Lab, 0)
			exchange(t, client, server)
			labtest.Fault(t)(b.DropPort(labtest.Addr(server.LocalAddr()).Port()))
			if sends {
				client.Write([]byte("request"))
			}
			r := b.judge(t, report(b.Client, client, 0))
			if closes {
				wantVerdict(t, r, verdict.DeadPath, "", agent.ActionClosed)
				wantAborted(t, client)
			} else {
				wantVerdict(t, r, verdict.DeadPath, "", agent.ActionFailed)
				wantTimedOut(t, client, 15*time.Second)
			}
			wantWorks(t, bystander, bystanderPeer)
		})
	}
}

// wantTimedOut: the connection is open, and the kernel ends it by its bound.
func wantTimedOut(t *testing.T, c *net.TCPConn, bound time.Duration) {
	t.Helper()
	if s := labtest.State(t, c); s != conn.Established {
		t.Errorf("it is %s, want open", s)
	}
	c.SetReadDeadline(time.Now().Add(bound + late))
	if _, err := io.ReadAll(c); !errors.Is(err, unix.ETIMEDOUT) {
		t.Errorf("read ended with %v, want ETIMEDOUT", err)
	}
}
