// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"io"
	"os"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/agent"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/sockets"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

// TestLockedSocket: an application is stuck in a page fault while it sends, with
// the socket locked, as happens when its memory is on a disk that hangs. The
// peer answers, and the answers wait behind the lock.
func TestLockedSocket(t *testing.T) {
	b := newBed(t, patient)
	client, server := labtest.Pair(t, b.Lab, 0)
	other, otherPeer := labtest.Pair(t, b.Lab, 0)
	exchange(t, client, server)
	exchange(t, other, otherPeer)
	b.silent(t, b.Client, client, 1200*time.Millisecond)
	release := labtest.StuckSend(t, client)
	s := sockets.New(b.Programs)
	labtest.Eventually(t, late, func() bool {
		snap, err := s.Get(b.Client, labtest.Addr(client.LocalAddr()), labtest.Addr(client.RemoteAddr()))
		return err == nil && snap.Locked
	}, "the socket to be locked")

	r := b.judge(t, report(b.Client, client, time.Second))
	if r.Verdict != verdict.AliveSlow && r.Reason != verdict.ReasonUnconfirmed && r.Reason != verdict.ReasonLocked || r.Action != agent.ActionNone {
		t.Errorf("result %+v", r)
	}
	// The walk that the lock holds up must not cost others their verdict.
	wantVerdict(t, b.judge(t, report(b.Client, other, time.Second)), verdict.AliveSlow, "", agent.ActionNone)

	release()
	buf := make([]byte, 8192)
	server.SetReadDeadline(time.Now().Add(late))
	if _, err := io.ReadFull(server, buf[:os.Getpagesize()]); err != nil {
		t.Errorf("what was being sent: %v", err)
	}
	wantWorks(t, client, server)
}
