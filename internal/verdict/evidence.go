// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
)

// Evidence is what a verdict rests on, for people: the counters and ages of the
// last look that found the socket, and what the probe did.
type Evidence struct {
	State            conn.State // 0 where no look found the socket
	PayloadSinceCall bool
	BytesReceived    uint64
	BytesAcked       uint64
	Unread           uint32
	InFlight         bool
	Unacked, Unsent  uint32 // payload written and not acknowledged; not sent, of that
	DataAge          time.Duration
	PacketAge        time.Duration
	ProbesSent       int
	ProbeAnswered    bool
	Window           time.Duration // 0: no probe was needed
	App              App
	CallAge          time.Duration // when the report came in
}

// Evidence sums up the input.
func (in Input) Evidence() Evidence {
	look := in.Before
	if in.Probe.Done && in.After.Found {
		look = in.After
	}
	s := &look.Snapshot
	e := Evidence{
		ProbesSent: in.Probe.Sent,
		Window:     in.Probe.Window,
		App:        in.App,
	}
	if !look.Found {
		return e
	}
	e.State = s.State
	e.PayloadSinceCall = PayloadSince(s, in.Sent)
	e.BytesReceived, e.BytesAcked = s.PayloadReceived(), s.PayloadAcked()
	e.Unread, e.InFlight = s.Unread(), s.InFlight()
	e.Unacked, e.Unsent = s.Unacked(), s.Unsent()
	e.DataAge, e.PacketAge = s.DataAge, s.PacketAge
	e.ProbeAnswered = in.Probe.Sent > 0 && in.After.Found && Heard(&in.Before.Snapshot, s)
	e.CallAge = in.Before.Snapshot.Taken - in.Sent
	return e
}
