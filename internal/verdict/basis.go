// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
)

// Basis is an Input as the record of a verdict keeps it: all that Decide reads of
// it, so that the decision can be made again, and no address. Times are in
// nanoseconds, exact; moments count from the report, so that those before it are
// negative.
type Basis struct {
	// SentNS is when the call was written.
	SentNS int64 `json:"sent_ns"`
	// Unmanaged is as in Input.
	Unmanaged string `json:"unmanaged,omitempty"`
	// Before is the first look. It is older than the report where another one
	// about the same socket had begun the judgement.
	Before Sight `json:"before"`
	// Probe and After are nil where the first look sufficed.
	Probe *Asked `json:"probe,omitempty"`
	After *Sight `json:"after,omitempty"`
	// App is what became of the application probe, "" where none was made.
	App string `json:"app,omitempty"`
	// CloseHung and SilentLimitNS are what the policy says.
	CloseHung     bool  `json:"close_hung,omitempty"`
	SilentLimitNS int64 `json:"silent_limit_ns,omitempty"`
}

// Asked is a Probe.
type Asked struct {
	Sent    int  `json:"sent"`
	Wanted  int  `json:"wanted"`
	Blocked bool `json:"blocked,omitempty"`
	NoRoute bool `json:"no_route,omitempty"`
	// LinkDown is why there was no route.
	LinkDown bool `json:"link_down,omitempty"`
	// Multipath, Apart, Astray, LocalLeg, LegUnknown and Resent are as in Probe.
	Multipath  bool  `json:"multipath,omitempty"`
	Apart      bool  `json:"apart,omitempty"`
	Astray     bool  `json:"astray,omitempty"`
	LocalLeg   bool  `json:"local_leg,omitempty"`
	LegUnknown bool  `json:"leg_unknown,omitempty"`
	Resent     bool  `json:"resent,omitempty"`
	WindowNS   int64 `json:"window_ns"`
}

// Sight is a Look.
type Sight struct {
	Found bool `json:"found"`
	// Ended is how a socket ended that was not found: closed, reset, bound,
	// destroyed, or "" where nobody told.
	Ended string `json:"ended,omitempty"`

	TakenNS int64  `json:"taken_ns"`
	State   string `json:"state,omitempty"`
	// TCPBytesReceived and TCPBytesAcked are the kernel's own counters (as in
	// struct tcp_info): a FIN counts one in either, a SYN of ours one in the second.
	TCPBytesReceived uint64 `json:"tcp_bytes_received,omitempty"`
	TCPBytesAcked    uint64 `json:"tcp_bytes_acked,omitempty"`
	Unread           uint32 `json:"unread,omitempty"`
	// SndUna, SndNxt and WriteSeq are sequence numbers: of the oldest byte that is
	// not acknowledged, of the next one to send, and after the last one written, a
	// FIN of ours included. They count from the first look's SndUna.
	SndUna   uint32 `json:"snd_una"`
	SndNxt   uint32 `json:"snd_nxt"`
	WriteSeq uint32 `json:"write_seq"`
	// SendWindow is what the peer lets us send, 0: it does not read.
	SendWindow uint32 `json:"send_window"`

	DataAgeNS   int64 `json:"data_age_ns"`
	PacketAgeNS int64 `json:"packet_age_ns"`
	SendAgeNS   int64 `json:"send_age_ns"`
	// NeverSent says that no payload was ever sent: SendAgeNS counts from the handshake.
	NeverSent bool `json:"never_sent,omitempty"`
	// DataStamp and AckStamp are the kernel's ticks of the last payload and of the
	// last acknowledgement.
	DataStamp uint32 `json:"data_stamp"`
	AckStamp  uint32 `json:"ack_stamp"`

	Retransmits uint8 `json:"retransmits,omitempty"`
	ProbesOut   uint8 `json:"probes_out,omitempty"`
	Locked      bool  `json:"locked,omitempty"`
	Backlog     bool  `json:"backlog,omitempty"`
	Orphan      bool  `json:"orphan,omitempty"`
	MPTCP       bool  `json:"mptcp,omitempty"`
	MD5OrAO     bool  `json:"md5_or_ao,omitempty"`
	Repair      bool  `json:"repair,omitempty"`
	LinkUp      bool  `json:"link_up"`
	// Direction is "" where the socket has no record.
	Direction string `json:"direction,omitempty"`
	Ambiguous bool   `json:"ambiguous,omitempty"`
}

// Basis returns the input for the record; report is when the report came in.
func (in Input) Basis(report time.Duration) *Basis {
	base := in.Before.Snapshot.SndUna
	b := &Basis{
		SentNS: int64(in.Sent - report), Unmanaged: in.Unmanaged, Before: sight(&in.Before, base, report),
		App: in.App.String(), CloseHung: in.CloseHung, SilentLimitNS: int64(in.SilentLimit),
	}
	if p := &in.Probe; p.Done {
		after := sight(&in.After, base, report)
		b.After = &after
		b.Probe = &Asked{Sent: p.Sent, Wanted: p.Wanted, Blocked: p.Blocked, NoRoute: p.NoRoute, LinkDown: p.LinkDown,
			Multipath: p.Multipath, Apart: p.Apart, Astray: p.Astray, LocalLeg: p.LocalLeg, LegUnknown: p.LegUnknown, Resent: p.Resent, WindowNS: int64(p.Window)}
	}
	return b
}

func sight(l *Look, base uint32, report time.Duration) Sight {
	if !l.Found {
		return Sight{Ended: l.Ended.String()}
	}
	s := &l.Snapshot
	out := Sight{
		Found: true, TakenNS: int64(s.Taken - report), State: s.State.String(),
		TCPBytesReceived: s.BytesReceived, TCPBytesAcked: s.BytesAcked, Unread: s.Unread(),
		SndUna: s.SndUna - base, SndNxt: s.SndNxt - base, WriteSeq: s.WriteSeq - base, SendWindow: s.SndWnd,
		DataAgeNS: int64(s.DataAge), PacketAgeNS: int64(s.PacketAge), SendAgeNS: int64(s.SendAge), NeverSent: s.NeverSent,
		DataStamp: s.DataStamp, AckStamp: s.AckStamp, Retransmits: s.Retransmits, ProbesOut: s.ProbesOut,
		Locked: s.Locked, Backlog: s.Backlog, Orphan: s.Orphan,
		MPTCP: s.MPTCP, MD5OrAO: s.MD5OrAO, Repair: s.Repair, LinkUp: s.DstDevUp,
	}
	if s.HasRecord {
		out.Direction, out.Ambiguous = s.Record.Direction.String(), s.Record.Ambiguous
	}
	return out
}

// Input returns what Decide decides alike on, and Evidence sums up alike: the
// report was at 0 on its clock, and the first look's SndUna is 0. The error names a
// word that is not known, of a later version perhaps.
func (b *Basis) Input() (Input, error) {
	in := Input{
		Sent: time.Duration(b.SentNS), Unmanaged: b.Unmanaged,
		CloseHung: b.CloseHung, SilentLimit: time.Duration(b.SilentLimitNS),
	}
	var err error
	if in.App, err = parse(b.App, AppNotAsked, AppSilent); err != nil {
		return Input{}, fmt.Errorf("read application probe: %w", err)
	}
	if in.Before, err = b.Before.look(); err != nil {
		return Input{}, fmt.Errorf("read first look: %w", err)
	}
	if b.Probe == nil {
		return in, nil
	}
	p := b.Probe
	in.Probe = Probe{
		Done: true, Sent: p.Sent, Wanted: p.Wanted, Blocked: p.Blocked, NoRoute: p.NoRoute, LinkDown: p.LinkDown,
		Multipath: p.Multipath, Apart: p.Apart, Astray: p.Astray, LocalLeg: p.LocalLeg, LegUnknown: p.LegUnknown, Resent: p.Resent,
		Window: time.Duration(p.WindowNS),
	}
	if b.After == nil {
		return Input{}, fmt.Errorf("read last look: it is missing beside the probe")
	}
	if in.After, err = b.After.look(); err != nil {
		return Input{}, fmt.Errorf("read last look: %w", err)
	}
	return in, nil
}

func (g *Sight) look() (l Look, err error) {
	if !g.Found {
		l.Ended, err = parse(g.Ended, EndUnknown, EndDestroyed)
		return l, err
	}
	l.Found = true
	s := &l.Snapshot
	if s.State, err = parse(g.State, conn.Established, conn.NewSynRecv); err != nil {
		return Look{}, err
	}
	if s.HasRecord = g.Direction != ""; s.HasRecord {
		if s.Record.Direction, err = parse(g.Direction, conn.DirectionUnknown, conn.Inbound); err != nil {
			return Look{}, err
		}
		s.Record.Ambiguous = g.Ambiguous
	}
	s.Taken = time.Duration(g.TakenNS)
	s.BytesReceived, s.BytesAcked = g.TCPBytesReceived, g.TCPBytesAcked
	if s.RcvNxt = g.Unread; g.Unread > 0 && s.State.PeerFinished() {
		s.RcvNxt++
	}
	s.SndUna, s.SndNxt, s.WriteSeq, s.SndWnd = g.SndUna, g.SndNxt, g.WriteSeq, g.SendWindow
	s.DataAge, s.PacketAge, s.SendAge = time.Duration(g.DataAgeNS), time.Duration(g.PacketAgeNS), time.Duration(g.SendAgeNS)
	s.NeverSent = g.NeverSent
	s.DataStamp, s.AckStamp, s.Retransmits, s.ProbesOut = g.DataStamp, g.AckStamp, g.Retransmits, g.ProbesOut
	s.Locked, s.Backlog, s.Orphan = g.Locked, g.Backlog, g.Orphan
	s.MPTCP, s.MD5OrAO, s.Repair, s.DstDevUp = g.MPTCP, g.MD5OrAO, g.Repair, g.LinkUp
	return l, nil
}

// parse finds the value between two that has this name.
func parse[T interface {
	~uint8
	fmt.Stringer
}](name string, first, last T) (T, error) {
	for v := first; v <= last; v++ {
		if v.String() == name {
			return v, nil
		}
	}
	return 0, fmt.Errorf("%q is not known", name)
}
