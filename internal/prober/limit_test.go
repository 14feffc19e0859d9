// SPDX-License-Identifier: Apache-2.0

package prober

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
)

// TestAnswerLimit: the peer's limit on answers is one for the kernel's own keepalives and
// for segments of ours, and what carries data is not under it (kernel-facts P5).
func TestAnswerLimit(t *testing.T) {
	b := newBed(t)
	p := connect(t, b, kinds[0])
	for _, o := range [][3]int{{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 1}, {unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 1}, {unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1}} {
		labtest.Setsockopt(t, p.client, o[0], o[1], o[2])
	}
	s := p.snapshot(t)
	refused := func() uint64 { return netstat(t, b.Server, "TCPACKSkippedSeq") }

	limited := false
	for range 40 { // a slow machine may come too late
		p.silent(t)
		before := refused()
		p.answered(t) // the keepalive
		heard := conn.Now() - p.ackAge(t)
		send(t, p, s)
		labtest.Eventually(t, patience, func() bool {
			limited = refused() > before
			return limited || conn.Now()-p.ackAge(t) > heard+100*time.Millisecond
		}, "the segment to be refused an answer, or to get one")
		if limited {
			break
		}
	}
	if !limited {
		t.Fatal("this machine is too slow to ask twice in half a second, or the second is answered, too")
	}

	before := refused()
	fault := labtest.Fault(t)(b.Drop(lab.Match{Src: lab.Only(p.remote.Addr()), SrcPort: p.remote.Port()}))
	if _, err := p.client.Write([]byte("is anybody there")); err != nil {
		t.Fatal(err)
	}
	labtest.Eventually(t, patience, func() bool { return labtest.Packets(t, fault) >= 3 }, "answers to the data and to two retransmissions")
	if n := refused() - before; n != 0 {
		t.Errorf("%d retransmissions were refused an answer", n)
	}
	labtest.Heal(t, fault)
	expect(t, p.server, "is anybody there")
}
