// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Numbers of include/uapi/linux/netfilter/nfnetlink_conntrack.h.
const (
	subsystem = 1 << 8 // NFNL_SUBSYS_CTNETLINK
	typeNew   = subsystem | 0
	typeGet   = subsystem | 1

	attrOrig  = 1 // CTA_TUPLE_ORIG
	attrReply = 2 // CTA_TUPLE_REPLY

	attrIP    = 1 // CTA_TUPLE_IP
	attrProto = 2 // CTA_TUPLE_PROTO

	attrSource4, attrDest4 = 1, 2 // CTA_IP_V4_SRC, ..._DST
	attrSource6, attrDest6 = 3, 4

	attrNumber             = 1 // CTA_PROTO_NUM
	attrSource, attrTarget = 2, 3
)

// nfgenmsg is the size of struct nfgenmsg.
const nfgenmsg = 4

// tuple is where packets of one direction come from and go to.
type tuple struct{ src, dst netip.AddrPort }

// entry is what is known of a connection: the packets of who opened it, as they
// came, and the answers to them, before they are translated back.
type entry struct{ orig, reply tuple }

// request is an IPCTNL_MSG_CT_GET for the connection of which these packets are,
// whichever end has opened it: one table holds the tuples of both directions.
func request(src, dst netip.AddrPort) ([]byte, error) {
	family := byte(unix.AF_INET6)
	if dst.Addr().Is4() {
		family = unix.AF_INET
	}
	enc := netlink.NewAttributeEncoder()
	enc.ByteOrder = binary.BigEndian
	enc.Nested(attrOrig, tuple{src, dst}.encode)
	attributes, err := enc.Encode()
	if err != nil {
		return nil, err
	}
	m := netlink.Message{
		Header: netlink.Header{
			Length: uint32(unix.NLMSG_HDRLEN + nfgenmsg + len(attributes)),
			Type:   typeGet,
			Flags:  netlink.Request,
		},
		Data: append([]byte{family, 0, 0, 0}, attributes...),
	}
	return m.MarshalBinary()
}

func (t tuple) encode(enc *netlink.AttributeEncoder) error {
	source, dest := uint16(attrSource6), uint16(attrDest6)
	if t.dst.Addr().Is4() {
		source, dest = attrSource4, attrDest4
	}
	enc.Nested(attrIP, func(enc *netlink.AttributeEncoder) error {
		enc.Bytes(source, t.src.Addr().AsSlice())
		enc.Bytes(dest, t.dst.Addr().AsSlice())
		return nil
	})
	enc.Nested(attrProto, func(enc *netlink.AttributeEncoder) error {
		enc.Uint8(attrNumber, unix.IPPROTO_TCP)
		enc.Uint16(attrSource, t.src.Port())
		enc.Uint16(attrTarget, t.dst.Port())
		return nil
	})
	return nil
}

// reply reads the answer: the entry, or the kernel's errno.
func reply(b []byte) (e entry, err error) {
	if len(b) < unix.NLMSG_HDRLEN+nfgenmsg {
		return e, fmt.Errorf("netlink message of %d bytes", len(b))
	}
	data := b[unix.NLMSG_HDRLEN:]
	switch kind := binary.NativeEndian.Uint16(b[4:]); kind {
	case unix.NLMSG_ERROR:
		if code := int32(binary.NativeEndian.Uint32(data)); code < 0 {
			return e, unix.Errno(-code)
		}
		return e, errors.New("acknowledgment in place of an entry")
	case typeNew:
	default:
		return e, fmt.Errorf("netlink message of type %#x in place of an entry", kind)
	}
	dec, err := netlink.NewAttributeDecoder(data[nfgenmsg:])
	if err != nil {
		return e, fmt.Errorf("read entry: %w", err)
	}
	dec.ByteOrder = binary.BigEndian
	for dec.Next() {
		switch dec.Type() {
		case attrOrig:
			dec.Nested(e.orig.decode)
		case attrReply:
			dec.Nested(e.reply.decode)
		}
	}
	if err := dec.Err(); err != nil {
		return e, fmt.Errorf("read entry: %w", err)
	}
	for _, a := range []netip.AddrPort{e.orig.src, e.orig.dst, e.reply.src, e.reply.dst} {
		if !a.IsValid() {
			return e, errors.New("entry lacks an address")
		}
	}
	return e, nil
}

func (t *tuple) decode(dec *netlink.AttributeDecoder) error {
	var src, dst netip.Addr
	var sport, dport uint16
	for dec.Next() {
		switch dec.Type() {
		case attrIP:
			dec.Nested(func(dec *netlink.AttributeDecoder) error {
				for dec.Next() {
					switch dec.Type() {
					case attrSource4, attrSource6:
						src, _ = netip.AddrFromSlice(dec.Bytes())
					case attrDest4, attrDest6:
						dst, _ = netip.AddrFromSlice(dec.Bytes())
					}
				}
				return nil
			})
		case attrProto:
			dec.Nested(func(dec *netlink.AttributeDecoder) error {
				for dec.Next() {
					switch dec.Type() {
					case attrSource:
						sport = dec.Uint16()
					case attrTarget:
						dport = dec.Uint16()
					}
				}
				return nil
			})
		}
	}
	t.src, t.dst = netip.AddrPortFrom(src, sport), netip.AddrPortFrom(dst, dport)
	return nil
}

// other returns who is at the other end of the connection whose socket has these
// addresses. What one end has as the peer's is what the packets of the other
// direction come from once they are translated.
func (e entry) other(local, remote netip.AddrPort) netip.AddrPort {
	if (e.orig == tuple{local, remote}) {
		return e.reply.src
	}
	return e.orig.src // accepted here
}
