// SPDX-License-Identifier: Apache-2.0

package sockdiag

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"
	"unsafe"

	"github.com/mdlayher/netlink"
	"github.com/sockhealth/sockhealth/internal/conn"
	"golang.org/x/sys/unix"
)

var (
	errShort  = errors.New("message is too short")
	errFamily = errors.New("unknown address family")
	errLength = errors.New("attribute has a wrong length")
)

// decode reads struct inet_diag_msg and the attributes behind it. The Socket's
// Netns stays 0: the message does not tell it.
func decode(b []byte) (Socket, error) {
	if len(b) < sizeofMessage {
		return Socket{}, fmt.Errorf("decode socket: %w", errShort)
	}
	native, id := binary.NativeEndian, b[4:4+sizeofSockID]
	s := Socket{
		State:   conn.State(b[1]),
		Timer:   Timer(b[2]),
		Retries: b[3],
		Expires: max(0, time.Duration(int32(native.Uint32(b[52:])))) * time.Millisecond, // overdue: below 0
		RQueue:  native.Uint32(b[56:]),
		WQueue:  native.Uint32(b[60:]),
		UID:     native.Uint32(b[64:]),
		Inode:   native.Uint32(b[68:]),
	}
	s.Family = b[0]
	s.Ifindex = native.Uint32(id[36:])
	s.Cookie = uint64(native.Uint32(id[40:])) | uint64(native.Uint32(id[44:]))<<32
	var err error
	if s.Local, err = addrPort(s.Family, id[4:20], id[0:2]); err == nil {
		s.Remote, err = addrPort(s.Family, id[20:36], id[2:4])
	}
	if err == nil {
		err = s.attributes(b[sizeofMessage:])
	}
	if err != nil {
		return Socket{}, fmt.Errorf("decode socket: %w", err)
	}
	return s, nil
}

// addrPort reads an address of a socket's family. What is IPv4 on the wire
// comes out as IPv4.
func addrPort(family uint8, addr, port []byte) (netip.AddrPort, error) {
	var a netip.Addr
	switch family {
	case unix.AF_INET:
		a = netip.AddrFrom4([4]byte(addr[:4]))
	case unix.AF_INET6:
		a = netip.AddrFrom16([16]byte(addr)).Unmap()
	default:
		return netip.AddrPort{}, fmt.Errorf("%w %d", errFamily, family)
	}
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16(port)), nil
}

// attributes reads those it knows and passes over the rest.
func (s *Socket) attributes(b []byte) error {
	ad, err := netlink.NewAttributeDecoder(b)
	if err != nil {
		return err
	}
	for ad.Next() {
		switch ad.Type() {
		case attrInfo:
			s.TCPInfo, err = tcpInfo(ad.Bytes())
		case attrTOS:
			s.TOS = ad.Uint8()
		case attrTClass:
			s.TClass = ad.Uint8()
		case attrShutdown:
			s.Shutdown = ad.Uint8()
		case attrMark:
			s.Mark = ad.Uint32()
		case attrCgroupID:
			s.CgroupID = ad.Uint64()
		case attrMD5:
			s.MD5 = true
		case attrULP:
			ad.Nested(s.ulp)
		}
		if err != nil {
			return err
		}
	}
	return ad.Err()
}

func (s *Socket) ulp(ad *netlink.AttributeDecoder) error {
	for ad.Next() {
		if ad.Type() == ulpName {
			s.ULP = ad.String()
		}
	}
	return nil
}

// tcpInfo reads struct tcp_info, which grows with the kernel: what an older one
// does not send is 0, and what a newer one adds is left out.
func tcpInfo(b []byte) (*unix.TCPInfo, error) {
	if len(b) == 0 {
		return nil, fmt.Errorf("tcp_info: %w", errLength)
	}
	info := new(unix.TCPInfo)
	// A copy of the struct as it lies in memory: encoding/binary knows nothing
	// of the two bytes behind Options, where C has bit fields.
	copy((*[unix.SizeofTCPInfo]byte)(unsafe.Pointer(info))[:], b)
	return info, nil
}
