// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"io"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/agent"
	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

// TestWallClockJumps: while calls are judged somebody sets the clock, an hour on and
// two hours back, again and again.
func TestWallClockJumps(t *testing.T) {
	if os.Getenv("SOCKHEALTH_VM") == "" {
		t.Skip("needs a machine of its own, whose clock it can set (make vm)")
	}
	b := newBed(t, patient)
	slow, slowPeer := labtest.Pair(t, b.Lab, 0)
	dead, deadPeer := labtest.Pair(t, b.Lab, 0)
	exchange(t, slow, slowPeer)
	exchange(t, dead, deadPeer)
	labtest.Fault(t)(b.StateLoss(labtest.Addr(dead.LocalAddr()), labtest.Addr(dead.RemoteAddr())))
	b.silent(t, b.Client, dead, 100*time.Millisecond) // payload is older than the call
	slow.Write([]byte("request"))
	io.ReadFull(slowPeer, make([]byte, 7))

	var real unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_REALTIME, &real); err != nil {
		t.Fatal(err)
	}
	began := conn.Now()
	set := func(jump time.Duration) {
		ts := unix.NsecToTimespec(real.Nano() + int64(conn.Now()-began) + int64(jump))
		if err := unix.ClockSettime(unix.CLOCK_REALTIME, &ts); err != nil {
			t.Error(err)
		}
	}
	defer set(0)
	results := make(chan agent.Result, 1)
	go func() {
		r, err := b.agent.Judge(t.Context(), report(b.Client, dead, 0))
		if err != nil || len(r) != 1 {
			t.Errorf("%v, %v", r, err)
			r = make([]agent.Result, 1)
		}
		results <- r[0]
	}()
	for jump := time.Hour; ; jump = -jump {
		set(jump)
		wantVerdict(t, b.judge(t, report(b.Client, slow, 0)), verdict.AliveSlow, "", agent.ActionNone)
		select {
		case r := <-results:
			wantVerdict(t, r, verdict.DeadPath, "", agent.ActionClosed)
			if r.Duration < 1500*time.Millisecond || r.Duration > late || r.Evidence.DataAge < 0 || r.Evidence.DataAge > time.Minute {
				t.Errorf("result %+v", r)
			}
			wantWorks(t, slowPeer, slow)
			return
		case <-time.After(100 * time.Millisecond):
		}
	}
}
