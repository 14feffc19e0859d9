// SPDX-License-Identifier: Apache-2.0

package prober

import (
	"encoding/hex"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sockhealth/sockhealth/internal/conn"
)

var equal = cmp.Options{
	cmp.AllowUnexported(segment{}),
	cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
}

// golden are keepalives that Linux 6.18 sent itself, with the checksums that a
// network card fills in and, over IPv4, without what the kernel fills in.
var golden = []struct {
	name string
	s    conn.Snapshot
	now  time.Duration
	// ttl and label are not the snapshot's.
	ttl   uint8
	label uint32
	wire  string
}{
	{
		name: "IPv4 with timestamps",
		s: snapshot("127.0.0.1:52688", "127.0.0.1:7100", func(s *conn.Snapshot) {
			s.SndUna, s.RcvNxt, s.TOS = 0xe45a3392, 0x966a1051, 0xb8
			s.RcvWnd, s.RcvWScale = 64<<10-1023, 10
			s.Timestamps, s.TSOffset, s.TSRecent = true, 0xd236397-5000, 0xbfbf9937
		}),
		now: 5*time.Second + 999*time.Microsecond, ttl: 64,
		wire: "45b8003400004000400600007f0000017f000001cdd01bbce45a3391966a1051" +
			"80100040069500000101080a0d236397bfbf9937",
	}, {
		name: "IPv6 with timestamps in microseconds",
		s: snapshot("[::1]:49618", "[::1]:7100", func(s *conn.Snapshot) {
			s.SndUna, s.RcvNxt, s.TOS = 0xc34a5b64, 0xad3b5e99, 0x68|2 // ECN capable
			s.RcvWnd, s.RcvWScale = 64<<7, 7
			s.Timestamps, s.TimestampUsec, s.TSRecent = true, true, 0x9bf27433
			s.TSOffset = 0x1d20fd47 - 5000
		}),
		now: 5*time.Millisecond + 999, ttl: 64, label: 0xd654a,
		wire: "668d654a00200640000000000000000000000000000000010000000000000000" +
			"0000000000000001c1d21bbcc34a5b63ad3b5e998010004043dc00000101080a1d20fd479bf27433",
	}, {
		name: "IPv4 in an IPv6 socket, without timestamps",
		s: snapshot("127.0.0.1:52698", "127.0.0.1:7100", func(s *conn.Snapshot) {
			s.Family = 10
			s.SndUna, s.RcvNxt, s.TOS = 0xbd414900, 0x8b932e96, 0xb8
			s.RcvWnd = 64
			s.TSOffset, s.TSRecent = 7, 7 // mean nothing here
		}),
		ttl:  64,
		wire: "45b8002800004000400600007f0000017f000001cdda1bbcbd4148ff8b932e965010004007910000",
	}, {
		name: "IPv6 without timestamps",
		s: snapshot("[::1]:49626", "[::1]:7100", func(s *conn.Snapshot) {
			s.SndUna, s.RcvNxt, s.TOS = 0xe8b8e17a, 0x41a0a1c3, 0x68
			s.RcvWnd = 64
		}),
		ttl: 64, label: 0xa11a0,
		wire: "668a11a000140640000000000000000000000000000000010000000000000000" +
			"0000000000000001c1da1bbce8b8e17941a0a1c35010004024660000",
	},
}

// snapshot returns a healthy connection, changed by with.
func snapshot(local, remote string, with ...func(*conn.Snapshot)) conn.Snapshot {
	s := conn.Snapshot{State: conn.Established, DstDevUp: true}
	s.Local, s.Remote = netip.MustParseAddrPort(local), netip.MustParseAddrPort(remote)
	s.Family = 10
	if s.Remote.Addr().Is4() {
		s.Family = 2
	}
	for _, f := range with {
		f(&s)
	}
	return s
}

func TestKeepaliveIsTheKernelsByteForByte(t *testing.T) {
	for _, tt := range golden {
		t.Run(tt.name, func(t *testing.T) {
			g := keepalive(&tt.s, tt.now)
			g.ttl, g.flowLabel = tt.ttl, tt.label
			got := g.append(make([]byte, 0, maxSegment))
			if diff := cmp.Diff(tt.wire, hex.EncodeToString(got)); diff != "" {
				t.Errorf("-kernel +ours\n%s", diff)
			}
			if cap(got) != maxSegment {
				t.Errorf("the buffer of %d bytes did not suffice", maxSegment)
			}
		})
	}
}

func TestKeepaliveNumbers(t *testing.T) {
	for _, tt := range []struct {
		name string
		with func(*conn.Snapshot)
		now  time.Duration
		want segment
	}{
		{"sequence wraps", func(s *conn.Snapshot) { s.SndUna = 0 }, 0, segment{seq: 0xffffffff}},
		{"window too large for the field", func(s *conn.Snapshot) { s.RcvWnd = 1 << 20 }, 0,
			segment{seq: 0xffffffff, window: 0xffff}},
		{"window scaled", func(s *conn.Snapshot) { s.RcvWnd, s.RcvWScale = 1<<30, 14 }, 0,
			segment{seq: 0xffffffff, window: 0xffff}},
		{"window closed", func(s *conn.Snapshot) { s.RcvWScale = 7 }, 0, segment{seq: 0xffffffff}},
		{"window nearly closed", func(s *conn.Snapshot) { s.RcvWnd, s.RcvWScale = 129, 7 }, 0,
			segment{seq: 0xffffffff, window: 2}},
		{"absurd window scale", func(s *conn.Snapshot) { s.RcvWnd, s.RcvWScale = 1<<31, 255 }, 0,
			segment{seq: 0xffffffff, window: 1}},
		{"timestamp wraps", func(s *conn.Snapshot) { s.Timestamps, s.TSOffset = true, 0xffffffff },
			2 * time.Millisecond, segment{seq: 0xffffffff, timestamps: true, tsval: 1}},
		{"milliseconds after 50 days", func(s *conn.Snapshot) { s.Timestamps = true },
			(1<<32 + 3) * time.Millisecond, segment{seq: 0xffffffff, timestamps: true, tsval: 3}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := snapshot("10.91.1.2:40000", "10.91.2.2:7100", tt.with)
			tt.want.src, tt.want.dst = s.Local, s.Remote
			if diff := cmp.Diff(tt.want, keepalive(&s, tt.now), equal); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

// FuzzSegment: whatever goes in comes out of an independent reading, with a
// right checksum.
func FuzzSegment(f *testing.F) {
	f.Add(make([]byte, 8), uint16(1), uint16(2), uint8(0), uint8(64), uint32(0), uint32(3), uint32(4), uint16(5), true, uint32(6), uint32(7))
	f.Add(make([]byte, 32), uint16(0xffff), uint16(0xffff), uint8(0xfc), uint8(255), uint32(0xfffff), uint32(1<<31), uint32(1<<31), uint16(0xffff), false, uint32(0), uint32(0))
	f.Fuzz(func(t *testing.T, addrs []byte, sport, dport uint16, tos, ttl uint8, label, seq, ack uint32, window uint16, stamps bool, tsval, tsecr uint32) {
		half := len(addrs) / 2
		src, ok1 := netip.AddrFromSlice(addrs[:half])
		dst, ok2 := netip.AddrFromSlice(addrs[half:])
		if !ok1 || !ok2 {
			t.Skip()
		}
		want := segment{
			src: netip.AddrPortFrom(src, sport), dst: netip.AddrPortFrom(dst, dport),
			tos: tos, ttl: ttl, seq: seq, ack: ack, window: window, timestamps: stamps,
		}
		if !src.Is4() {
			want.flowLabel = label & 0xfffff
		}
		if stamps {
			want.tsval, want.tsecr = tsval, tsecr
		}
		got, err := hear(want.append(nil))
		if err != nil || got.sums != nil {
			t.Fatalf("%v, %v", err, got.sums)
		}
		if diff := cmp.Diff(want, got.segment, equal); diff != "" {
			t.Errorf("-want +got\n%s", diff)
		}
		if got.flags != flagACK || got.payload != 0 || src.Is4() && got.frag != 0x4000 {
			t.Errorf("flags %#x, %d bytes of payload, fragment field %#x", got.flags, got.payload, got.frag)
		}
	})
}
