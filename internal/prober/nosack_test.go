// SPDX-License-Identifier: Apache-2.0

package prober

import (
	"fmt"
	"testing"
	"time"

	nl "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
)

// What is in flight is lost, and no retransmission is due for long. Whoever has no
// selective acknowledgments takes answers to our probes for duplicates, and the third for
// a loss: it sends a segment once more, and halves its congestion window. A judgement ends
// with the first answer, so that none brings that about; nor do any with selective
// acknowledgments.
func TestAnswersAreDuplicates(t *testing.T) {
	for _, sack := range []string{"0", "1"} {
		for _, stamps := range []string{"0", "1"} {
			t.Run(fmt.Sprintf("sack %s, timestamps %s", sack, stamps), func(t *testing.T) {
				b := newBed(t)
				sysctlIn(t, b.Client, "ipv4/tcp_sack", sack)
				sysctlIn(t, b.Client, "ipv4/tcp_timestamps", stamps)
				sysctlIn(t, b.Client, "ipv4/tcp_early_retrans", "0") // no probes for the loss of a tail
				in(t, b.Client, func() error {
					r := defaultRoute(false, 0, first)
					r.RtoMin, r.RtoMinLock = int(time.Minute/time.Millisecond), true
					return nl.RouteReplace(r)
				})
				duplicates(t, b, sack == "0")
			})
		}
	}
}

func duplicates(t *testing.T, b *bed, counted bool) {
	t.Helper()
	p := connect(t, b, kinds[0])
	s := p.snapshot(t)
	labtest.Fault(t)(b.Drop(lab.Match{MinLen: 200}))
	if _, err := p.client.Write(make([]byte, 8000)); err != nil { // six segments
		t.Fatal(err)
	}
	before, window := b.recoveries(t), labtest.TCPInfo(t, p.client).Snd_cwnd
	for n := 0; n <= 3; n++ { // the first comes after the peer's last words, and is no duplicate of them
		p.silent(t)
		labtest.Eventually(t, patience, func() bool { return p.ackAge(t) > 520*time.Millisecond }, "the peer to owe an answer")
		send(t, p, s)
		p.answered(t)
		i, recoveries := labtest.TCPInfo(t, p.client), b.recoveries(t)-before
		if i.Unacked < 5 || i.State != unix.BPF_TCP_ESTABLISHED {
			t.Fatalf("state %d with %d segments in flight, want the data still on its way", i.State, i.Unacked)
		}
		lost := counted && n == 3
		if harmed := recoveries > 0 || i.Total_retrans > 0 || i.Snd_cwnd < window; harmed != lost {
			t.Errorf("duplicate %d: taken for a loss %d times, %d retransmitted, congestion window %d of %d; want a loss: %t",
				n, recoveries, i.Total_retrans, i.Snd_cwnd, window, lost)
		}
	}
}
