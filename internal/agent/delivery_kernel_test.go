// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/agent"
	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

// acknowledged waits until the peer has acknowledged all that was written.
func acknowledged(t *testing.T, c *net.TCPConn) {
	t.Helper()
	labtest.Eventually(t, late, func() bool { return labtest.TCPInfo(t, c).Unacked == 0 }, "the acknowledgement")
}

// TestDelivery: what waits behind a shut window is unsent, and our own FIN is no part
// of the request, whether it is acknowledged or not. Where nothing was ever written
// there is no request, although the connection is young (kernel-facts D3).
func TestDelivery(t *testing.T) {
	b := newBed(t, patient)
	for name, shutdown := range map[string]func(*net.TCPConn) error{
		"nothing written":              func(*net.TCPConn) error { return nil },
		"nothing written, half closed": (*net.TCPConn).CloseWrite,
	} {
		client, server := labtest.Pair(t, b.Lab, 0)
		if err := shutdown(client); err != nil {
			t.Fatal(err)
		}
		for _, r := range []agent.Result{
			b.judge(t, report(b.Client, client, time.Second)), b.judge(t, report(b.Server, server, time.Second)),
		} {
			if r.Delivery != verdict.NoRequest || !r.Basis.Before.NeverSent {
				t.Errorf("%s: delivery %q, want %q; %+v", name, r.Delivery, verdict.NoRequest, r.Basis.Before)
			}
		}
	}
	slow, slowPeer := labtest.Pair(t, b.Lab, 0)
	exchange(t, slow, slowPeer)
	much := make([]byte, 64<<20) // which a slow machine takes its time for
	slow.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
	if n, err := slow.Write(much); n == 0 || err == nil {
		t.Fatalf("%d bytes were taken although nobody reads, %v", n, err)
	}
	r := b.judge(t, report(b.Client, slow, 500*time.Millisecond))
	wantVerdict(t, r, verdict.AliveSlow, "", agent.ActionNone)
	if e := r.Evidence; r.Delivery != verdict.Unacknowledged || e.Unsent == 0 || e.Unacked < e.Unsent {
		t.Errorf("behind a shut window: %q, %d unacknowledged, %d of them unsent", r.Delivery, e.Unacked, e.Unsent)
	}

	half, halfPeer := labtest.Pair(t, b.Lab, 0)
	exchange(t, half, halfPeer)
	half.Write([]byte("request"))
	half.CloseWrite()
	io.ReadAll(halfPeer)
	labtest.Eventually(t, late, func() bool { return labtest.State(t, half) == conn.FinWait2 }, "the FIN's acknowledgement")
	r = b.judge(t, report(b.Client, half, 0))
	wantVerdict(t, r, verdict.AliveSlow, "", agent.ActionNone)
	wantDelivery(t, r, verdict.Acknowledged, 0, 0)

	client, server := labtest.Pair(t, b.Lab, 0)
	exchange(t, client, server)
	labtest.Fault(t)(b.DropPort(labtest.Addr(server.LocalAddr()).Port()))
	client.Write([]byte("request"))
	client.CloseWrite()
	r = b.judge(t, report(b.Client, client, 0))
	wantVerdict(t, r, verdict.DeadPath, "", agent.ActionClosed)
	wantDelivery(t, r, verdict.Unacknowledged, 7, 0)
}
