// SPDX-License-Identifier: Apache-2.0

package verdict

import "time"

// Delivery says what became of the request of a call, as far as this host's
// kernel knows: what it has written, sent and got acknowledged. Acknowledged is
// by the peer's TCP, or by a proxy on the way; whether an application has read it,
// or done what it asks for, no kernel knows.
type Delivery string

// The deliveries. "" where no call was made (a sweep), or no look found the socket.
const (
	// NoRequest: no payload was sent on the connection since the call, and none
	// waited to be: the call was made elsewhere, or never written.
	NoRequest Delivery = "no_request"
	// Unacknowledged: of what had been written when the report came in, the end is
	// not acknowledged. The request, or its end, may be in that, or older bytes
	// that were sent again since.
	Unacknowledged Delivery = "unacknowledged"
	// Acknowledged: all that had been written when the report came in is.
	Acknowledged Delivery = "acknowledged"
)

// Deliveries lists them.
func Deliveries() []Delivery { return []Delivery{NoRequest, Unacknowledged, Acknowledged} }

// Delivered returns what became of the request of a call that was written at a
// moment: report is the look when the report came in, which is after that moment,
// last the last one. The kernel keeps no write sequence of the call; that of the
// report is the nearest there is, and what was written between the two counts as
// the call's.
func Delivered(report, last Look, sent time.Duration) Delivery {
	if !report.Found {
		return ""
	}
	r := &report.Snapshot
	if r.Unsent() == 0 && !CalledSince(r, sent) {
		return NoRequest
	}
	end := r.SndUna + r.Unacked()
	if r.Unacked() == 0 || last.Found && int32(last.Snapshot.SndUna-end) >= 0 {
		return Acknowledged
	}
	return Unacknowledged
}
