// SPDX-License-Identifier: Apache-2.0

package conn

import "testing"

// The sequence numbers that SYN and FIN take are no payload (kernel-facts L6).
func TestPayload(t *testing.T) {
	outbound := Record{Direction: Outbound}
	for name, tt := range map[string]struct {
		s                       Snapshot
		received, acked, unread uint64
	}{
		"fresh":                {Snapshot{State: Established, HasRecord: true, Record: outbound, BytesAcked: 1}, 0, 0, 0},
		"used":                 {Snapshot{State: Established, HasRecord: true, Record: outbound, BytesReceived: 10, BytesAcked: 6, RcvNxt: 13, CopiedSeq: 10}, 10, 5, 3},
		"accepted":             {Snapshot{State: Established, HasRecord: true, Record: Record{Direction: Inbound}, BytesAcked: 5}, 0, 5, 0},
		"the peer's FIN alone": {Snapshot{State: CloseWait, BytesReceived: 1, RcvNxt: 11, CopiedSeq: 10}, 0, 0, 0},
		"payload and its FIN":  {Snapshot{State: CloseWait, BytesReceived: 11, RcvNxt: 14, CopiedSeq: 10}, 10, 0, 3},
		"both have closed":     {Snapshot{State: LastAck, BytesReceived: 11, RcvNxt: 21, CopiedSeq: 21}, 10, 0, 0},
		"our FIN acknowledged": {Snapshot{State: FinWait2, HasRecord: true, Record: outbound, BytesReceived: 10, BytesAcked: 7}, 10, 5, 0},
		"our FIN on its way":   {Snapshot{State: FinWait1, HasRecord: true, Record: outbound, BytesReceived: 10, BytesAcked: 6}, 10, 5, 0},
	} {
		if r, a, u := tt.s.PayloadReceived(), tt.s.PayloadAcked(), uint64(tt.s.Unread()); r != tt.received || a != tt.acked || u != tt.unread {
			t.Errorf("%s: received %d, acknowledged %d, unread %d, want %d, %d, %d", name, r, a, u, tt.received, tt.acked, tt.unread)
		}
	}
}
