// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"net/netip"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// TCPFlags are flags of the TCP header.
type TCPFlags uint8

// The flags there are to match.
const (
	FIN TCPFlags = 1 << iota
	SYN
	RST
	PSH
	ACK
)

// Match names the packets through the router that a rule is about; a zero field
// matches all. The zero Match is every packet of both IP versions.
type Match struct {
	// Src and Dst are the packet's addresses. An invalid (zero) prefix matches
	// all; the two must be of one family.
	Src, Dst netip.Prefix
	// SrcPort and DstPort are TCP ports.
	SrcPort, DstPort uint16
	// Set are TCP flags that all are set, Clear those that all are not.
	Set, Clear TCPFlags
	// MinLen and MaxLen bound the length of the IP packet in bytes. A segment
	// without payload has at most 100: IPv6, and TCP with 40 bytes of options.
	MinLen, MaxLen uint32
	// Both matches the answers, too: the same with source and destination
	// exchanged.
	Both bool
}

// Only is the prefix that holds addr alone.
func Only(addr netip.Addr) netip.Prefix { return netip.PrefixFrom(addr, addr.BitLen()) }

// Between matches one connection, in both directions.
func Between(a, b netip.AddrPort) Match {
	return Match{
		Src: Only(a.Addr()), SrcPort: a.Port(),
		Dst: Only(b.Addr()), DstPort: b.Port(),
		Both: true,
	}
}

// Port matches both directions of every connection to a server's port.
func Port(port uint16) Match { return Match{DstPort: port, Both: true} }

// directions returns m for one direction or two.
func (m Match) directions() []Match {
	if !m.Both {
		return []Match{m}
	}
	m.Both = false
	answer := m
	answer.Src, answer.Dst = m.Dst, m.Src
	answer.SrcPort, answer.DstPort = m.DstPort, m.SrcPort
	return []Match{m, answer}
}

// check refuses what matches nothing.
func (m Match) check() error {
	for _, p := range []netip.Prefix{m.Src, m.Dst} {
		if p.IsValid() && (p.Addr().Is4In6() || p != p.Masked()) {
			return fmt.Errorf("match %s: not a plain prefix", p)
		}
	}
	if m.Src.IsValid() && m.Dst.IsValid() && m.Src.Addr().Is4() != m.Dst.Addr().Is4() {
		return fmt.Errorf("match %s to %s: not of one family", m.Src, m.Dst)
	}
	return nil
}

// exprs compiles m, for one direction, to nftables expressions. All comparisons
// are in network byte order.
func (m Match) exprs() []expr.Any {
	var e []expr.Any
	e = append(e, address(m.Src, 12, 8)...)
	e = append(e, address(m.Dst, 16, 24)...)
	if m.SrcPort != 0 || m.DstPort != 0 || m.Set|m.Clear != 0 {
		e = append(e, &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, equal([]byte{unix.IPPROTO_TCP}))
	}
	if m.SrcPort != 0 {
		e = append(e, transport(0, 2), equal(binaryutil.BigEndian.PutUint16(m.SrcPort)))
	}
	if m.DstPort != 0 {
		e = append(e, transport(2, 2), equal(binaryutil.BigEndian.PutUint16(m.DstPort)))
	}
	if mask := m.Set | m.Clear; mask != 0 {
		e = append(e, transport(13, 1), masked([]byte{byte(mask)}), equal([]byte{byte(m.Set)}))
	}
	if m.MinLen != 0 {
		e = append(e, length(expr.CmpOpGte, m.MinLen)...)
	}
	if m.MaxLen != 0 {
		e = append(e, length(expr.CmpOpLte, m.MaxLen)...)
	}
	return e
}

// address compares the address at an offset into the IP header, which differs
// between the versions.
func address(p netip.Prefix, offset4, offset6 uint32) []expr.Any {
	if !p.IsValid() {
		return nil
	}
	family, offset := byte(unix.NFPROTO_IPV4), offset4
	if p.Addr().Is6() {
		family, offset = unix.NFPROTO_IPV6, offset6
	}
	e := []expr.Any{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, equal([]byte{family})}
	if p.Bits() == 0 {
		return e
	}
	want := p.Addr().AsSlice()
	mask := make([]byte, len(want))
	for i := range p.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return append(e,
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: uint32(len(want))},
		masked(mask), equal(want))
}

func transport(offset, size uint32) expr.Any {
	return &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: size}
}

func equal(want []byte) expr.Any { return &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: want} }

func masked(mask []byte) expr.Any {
	return &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: uint32(len(mask)), Mask: mask, Xor: make([]byte, len(mask))}
}

func length(op expr.CmpOp, n uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyLEN, Register: 1},
		&expr.Byteorder{SourceRegister: 1, DestRegister: 1, Op: expr.ByteorderHton, Len: 4, Size: 4},
		&expr.Cmp{Op: op, Register: 1, Data: binaryutil.BigEndian.PutUint32(n)},
	}
}
