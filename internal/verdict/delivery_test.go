// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
)

// seq makes a look at the report's time with these sequence numbers.
func seq(una, nxt, write uint32, sendAge time.Duration, state conn.State) Look {
	return Look{Found: true, Snapshot: conn.Snapshot{
		Taken: now, State: state, SendAge: sendAge, DataAge: time.Minute, SndUna: una, SndNxt: nxt, WriteSeq: write,
	}}
}

// unsent is a look at a connection on which no payload was ever sent.
func unsent(l Look) Look {
	l.Snapshot.NeverSent = true
	return l
}

func TestDelivered(t *testing.T) {
	const (
		wrap  = 1<<32 - 50 // the numbers wrap within the request
		since = now - sent // the request, sent at once
		old   = time.Minute
	)
	est := conn.Established
	for _, test := range []struct {
		name         string
		report, last Look
		want         Delivery
	}{
		{"no such socket", Look{}, Look{}, ""},
		{"nothing was sent for a minute", seq(7, 7, 7, old, est), seq(7, 7, 7, old, est), NoRequest},
		{"nothing since, and what is older is not acknowledged", seq(7, 9, 9, old, est), seq(7, 9, 9, old, est), NoRequest},
		{"written, never sent", seq(7, 7, 9, old, est), seq(7, 7, 9, old, est), Unacknowledged},
		{"sent", seq(7, 9, 9, since, est), seq(7, 9, 9, since, est), Unacknowledged},
		{"sent, and its end is not acknowledged", seq(7, 9, 9, since, est), seq(8, 9, 9, since, est), Unacknowledged},
		{"acknowledged before the report", seq(9, 9, 9, since, est), seq(9, 9, 9, since, est), Acknowledged},
		{"acknowledged before the report, then it ended", seq(9, 9, 9, since, est), Look{Ended: EndReset}, Acknowledged},
		{"not acknowledged, then it ended", seq(7, 9, 9, since, est), Look{Ended: EndReset}, Unacknowledged},
		{"acknowledged meanwhile", seq(7, 9, 9, since, est), seq(9, 9, 9, since, est), Acknowledged},
		{"unsent, then acknowledged", seq(7, 7, 9, old, est), seq(9, 9, 9, since, est), Acknowledged},
		{"acknowledged meanwhile, more was written", seq(7, 9, 9, since, est), seq(9, 20, 20, 0, est), Acknowledged},
		{"an upload goes on", seq(7, 20, 30, since, est), seq(25, 30, 40, 0, est), Unacknowledged},
		{"a last look that is older than the report's", seq(9, 9, 9, since, est), seq(7, 9, 9, since, est), Acknowledged},
		{"numbers wrap", seq(wrap, 50, 50, since, est), seq(50, 50, 50, since, est), Acknowledged},
		{"numbers wrap, unacknowledged", seq(wrap, 50, 50, since, est), seq(10, 50, 50, since, est), Unacknowledged},
		{"our FIN is no request", seq(9, 10, 10, since, conn.FinWait1), seq(9, 10, 10, since, conn.FinWait1), Acknowledged},
		{"request and FIN", seq(7, 10, 10, since, conn.FinWait1), seq(7, 10, 10, since, conn.FinWait1), Unacknowledged},
		{"request acknowledged, FIN not", seq(7, 10, 10, since, conn.FinWait1), seq(9, 10, 10, since, conn.FinWait1), Acknowledged},
		{"nothing was ever written", unsent(seq(7, 7, 7, since, est)), unsent(seq(7, 7, 7, since, est)), NoRequest},
		{"nothing was ever written, then it ended", unsent(seq(7, 7, 7, since, est)), Look{Ended: EndReset}, NoRequest},
		{"nothing was ever written, and our FIN is not acknowledged", unsent(seq(7, 8, 8, since, conn.FinWait1)), unsent(seq(7, 8, 8, since, conn.FinWait1)), NoRequest},
		{"nothing was ever written, and our FIN is acknowledged", unsent(seq(8, 8, 8, since, conn.FinWait2)), unsent(seq(8, 8, 8, since, conn.FinWait2)), NoRequest},
		{"the first request waits to be sent", unsent(seq(7, 7, 9, since, est)), unsent(seq(7, 7, 9, since, est)), Unacknowledged},
		{"half closed, all acknowledged", seq(10, 10, 10, since, conn.FinWait2), seq(10, 10, 10, since, conn.FinWait2), Acknowledged},
	} {
		if got := Delivered(test.report, test.last, sent); got != test.want {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}
