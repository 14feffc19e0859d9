// SPDX-License-Identifier: Apache-2.0

package prober

import (
	"encoding/binary"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
)

const (
	ip4Header  = 20
	ip6Header  = 40
	tcpHeader  = 20
	tsOption   = 12 // NOP NOP kind length tsval tsecr
	maxSegment = ip6Header + tcpHeader + tsOption
	flagACK    = 0x10
	ecnBits    = 0x03
	dontFrag   = 0x40
	kindNOP    = 1
	kindTS     = 8
	offIPSum   = 10
	offTCPSum  = 16
)

// segment is a bare ACK with its IP header. The zero value is not valid.
type segment struct {
	src, dst   netip.AddrPort // both IPv4 or both IPv6
	tos        uint8          // IPv4 TOS or IPv6 traffic class
	ttl        uint8          // IPv4 time to live or IPv6 hop limit
	flowLabel  uint32         // IPv6 only, 20 bits
	seq, ack   uint32
	window     uint16 // scaled, as on the wire
	timestamps bool
	tsval      uint32 // both 0 without timestamps
	tsecr      uint32
}

// keepalive makes the segment that asks the peer of the connection for a sign
// of life. now is CLOCK_MONOTONIC at the moment of sending. TTL and flow label
// are the caller's to fill in.
func keepalive(s *conn.Snapshot, now time.Duration) segment {
	g := segment{
		src:    s.Local,
		dst:    s.Remote,
		tos:    s.TOS &^ ecnBits, // a pure ACK is never ECN capable (RFC 3168, 6.1.4)
		seq:    s.SndUna - 1,
		ack:    s.RcvNxt,
		window: window(s),
	}
	if s.Timestamps {
		g.timestamps = true
		g.tsval = timestamp(s, now)
		g.tsecr = s.TSRecent
	}
	return g
}

// window is the receive window as the header shows it: rounded up where the
// shift does not divide it, as the kernel does lest it take back what it gave
// (tcp_select_window).
func window(s *conn.Snapshot) uint16 {
	unit := uint64(1) << min(s.RcvWScale, 31)
	return uint16(min((uint64(s.RcvWnd)+unit-1)/unit, 0xffff))
}

// timestamp is the value that the kernel would put in a segment sent now
// (kernel-facts P4).
func timestamp(s *conn.Snapshot, now time.Duration) uint32 {
	if s.TimestampUsec {
		return uint32(now.Microseconds()) + s.TSOffset
	}
	return uint32(now.Milliseconds()) + s.TSOffset
}

// append appends the segment as it goes on the wire. IPv4's identification and
// header checksum stay zero: the kernel fills them in, with the total length.
func (g segment) append(b []byte) []byte {
	if g.dst.Addr().Is4() {
		b = g.appendIP4(b)
	} else {
		b = g.appendIP6(b)
	}
	start := len(b)
	b = g.appendTCP(b)
	binary.BigEndian.PutUint16(b[start+offTCPSum:], g.checksum(b[start:]))
	return b
}

func (g segment) length() uint16 {
	if g.timestamps {
		return tcpHeader + tsOption
	}
	return tcpHeader
}

func (g segment) appendIP4(b []byte) []byte {
	b = append(b, 4<<4|ip4Header/4, g.tos)
	b = binary.BigEndian.AppendUint16(b, ip4Header+g.length())
	b = append(b, 0, 0, dontFrag, 0, g.ttl, unix.IPPROTO_TCP, 0, 0)
	b = append(b, g.src.Addr().AsSlice()...)
	return append(b, g.dst.Addr().AsSlice()...)
}

func (g segment) appendIP6(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, 6<<28|uint32(g.tos)<<20|g.flowLabel&labelMask)
	b = binary.BigEndian.AppendUint16(b, g.length())
	b = append(b, unix.IPPROTO_TCP, g.ttl)
	b = append(b, g.src.Addr().AsSlice()...)
	return append(b, g.dst.Addr().AsSlice()...)
}

func (g segment) appendTCP(b []byte) []byte {
	b = binary.BigEndian.AppendUint16(b, g.src.Port())
	b = binary.BigEndian.AppendUint16(b, g.dst.Port())
	b = binary.BigEndian.AppendUint32(b, g.seq)
	b = binary.BigEndian.AppendUint32(b, g.ack)
	b = append(b, byte(g.length()/4)<<4, flagACK)
	b = binary.BigEndian.AppendUint16(b, g.window)
	b = append(b, 0, 0, 0, 0) // checksum, urgent pointer
	if g.timestamps {
		b = append(b, kindNOP, kindNOP, kindTS, tsOption-2)
		b = binary.BigEndian.AppendUint32(b, g.tsval)
		b = binary.BigEndian.AppendUint32(b, g.tsecr)
	}
	return b
}

// checksum is TCP's, over the pseudo header and a TCP part whose own checksum
// field is zero. Both pseudo headers add up the same words: the addresses, the
// protocol and the length.
func (g segment) checksum(tcp []byte) uint16 {
	sum := uint32(unix.IPPROTO_TCP) + uint32(len(tcp))
	for _, part := range [][]byte{g.src.Addr().AsSlice(), g.dst.Addr().AsSlice(), tcp} {
		for ; len(part) > 0; part = part[2:] { // every part has an even length
			sum += uint32(binary.BigEndian.Uint16(part))
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// unicast reports whether an address can be that of a connection's packets.
func unicast(a netip.AddrPort) bool {
	ip := a.Addr()
	return ip.IsValid() && !ip.Is4In6() && ip.Zone() == "" && !ip.IsUnspecified() && !ip.IsMulticast()
}
