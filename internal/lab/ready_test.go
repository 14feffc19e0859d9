// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"net/netip"
	"testing"

	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
)

// A lab that is not quite up yet loses the first SYN, and a test waits a second
// for the next without knowing why.
func TestFirstPacketArrives(t *testing.T) {
	labtest.NoLeak(t)
	for i := range labtest.Fewer(40) {
		l := labtest.New(t, lab.Options{})
		addr := l.ServerAddr4
		if i%2 == 1 {
			addr = l.ServerAddr6
		}
		syns := labtest.Counter(t)(l.Count(lab.Match{Set: lab.SYN}))
		labtest.PairTo(t, labtest.Dialer{NS: l.Client}, l.Server, netip.AddrPortFrom(addr, 0))
		if n := labtest.Packets(t, syns); n != 2 {
			t.Fatalf("lab %d, %s: %d SYN and SYN/ACK, want 2", i, addr, n)
		}
	}
}
