// SPDX-License-Identifier: Apache-2.0

package prober

import (
	"encoding/binary"
	"fmt"
	"math/big"
	"net/netip"
)

// heard is a TCP segment as a test found it on a wire, read by code that shares
// nothing with what is tested.
type heard struct {
	segment        // flags and options of no concern are left out
	flags   byte   // of the TCP header
	payload int    // bytes
	frag    uint16 // IPv4: DF is 0x4000
	sums    error  // what is wrong with the checksums
}

// hear reads an IP packet that carries TCP.
func hear(b []byte) (heard, error) {
	if len(b) == 0 {
		return heard{}, fmt.Errorf("empty packet")
	}
	switch b[0] >> 4 {
	case 4:
		return hear4(b)
	case 6:
		return hear6(b)
	}
	return heard{}, fmt.Errorf("IP version %d", b[0]>>4)
}

func hear4(b []byte) (heard, error) {
	if len(b) < 20 || b[9] != 6 {
		return heard{}, fmt.Errorf("not TCP over IPv4")
	}
	size, total := int(b[0]&15)*4, int(binary.BigEndian.Uint16(b[2:]))
	if size < 20 || total < size+20 || total > len(b) {
		return heard{}, fmt.Errorf("IPv4 header of %d in %d of %d bytes", size, total, len(b))
	}
	h := heard{frag: binary.BigEndian.Uint16(b[6:])}
	h.tos, h.ttl = b[1], b[8]
	src, dst := netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
	tcp := b[size:total]
	pseudo := append(append([]byte(nil), b[12:20]...), 0, 6, byte(len(tcp)>>8), byte(len(tcp)))
	if !addsUp(pseudo, tcp) {
		h.sums = fmt.Errorf("TCP checksum %#04x is wrong", tcp[16:18])
	}
	return h, h.hearTCP(src, dst, tcp)
}

func hear6(b []byte) (heard, error) {
	if len(b) < 60 || b[6] != 6 {
		return heard{}, fmt.Errorf("not TCP over IPv6")
	}
	total := 40 + int(binary.BigEndian.Uint16(b[4:]))
	if total < 60 || total > len(b) {
		return heard{}, fmt.Errorf("%d of %d bytes", total, len(b))
	}
	var h heard
	first := binary.BigEndian.Uint32(b)
	h.tos, h.flowLabel, h.ttl = uint8(first>>20), first&0xfffff, b[7]
	src, dst := netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
	tcp := b[40:total]
	pseudo := append(append([]byte(nil), b[8:40]...), 0, 0, byte(len(tcp)>>8), byte(len(tcp)), 0, 0, 0, 6)
	if !addsUp(pseudo, tcp) {
		h.sums = fmt.Errorf("TCP checksum %#04x is wrong", tcp[16:18])
	}
	return h, h.hearTCP(src, dst, tcp)
}

func (h *heard) hearTCP(src, dst netip.Addr, b []byte) error {
	size := int(b[12]>>4) * 4
	if size < 20 || size > len(b) {
		return fmt.Errorf("TCP header of %d in %d bytes", size, len(b))
	}
	h.src = netip.AddrPortFrom(src, binary.BigEndian.Uint16(b))
	h.dst = netip.AddrPortFrom(dst, binary.BigEndian.Uint16(b[2:]))
	h.seq, h.ack = binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint32(b[8:])
	h.flags, h.window, h.payload = b[13], binary.BigEndian.Uint16(b[14:]), len(b)-size
	for o := b[20:size]; len(o) > 0; {
		switch {
		case o[0] == 0:
			return nil
		case o[0] == 1:
			o = o[1:]
			continue
		case len(o) < 2 || o[1] < 2 || int(o[1]) > len(o):
			return fmt.Errorf("options %x", b[20:size])
		case o[0] == 8 && o[1] == 10:
			h.timestamps = true
			h.tsval, h.tsecr = binary.BigEndian.Uint32(o[2:]), binary.BigEndian.Uint32(o[6:])
		}
		o = o[o[1]:]
	}
	return nil
}

// addsUp reports whether a checksum inside the parts is right. The ones'
// complement sum of 16-bit words is the whole text read as one number, modulo
// 65535; with the checksum in place it must be a multiple of that.
func addsUp(parts ...[]byte) bool {
	var all []byte
	for _, p := range parts {
		all = append(all, p...)
	}
	if len(all)%2 == 1 {
		all = append(all, 0)
	}
	rest := new(big.Int).Mod(new(big.Int).SetBytes(all), big.NewInt(0xffff))
	return rest.Sign() == 0
}
