// SPDX-License-Identifier: Apache-2.0

package prober

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
)

// certainWay asks the routing table for the connection's route through dev, 0 for
// any, and reports whether a segment of ours that leaves by dev certainly takes the
// connection's next hop: the kernel chooses among several by the ports, which a raw
// socket has none of, or takes the first on the device that it is bound to
// (kernel-facts P8). It returns ErrNoRoute if there is no route.
//
// IPv4 has to be asked: a socket bound to a device that no route leads through
// sends all the same. The kernel then takes the peer for a neighbour on that
// link, asks for it by ARP and drops the segment, and a connection that the
// kernel itself would send another way looks dead. IPv6 refuses by itself.
func certainWay(s *conn.Snapshot, dev uint32) (bool, error) {
	source := s.Local.Addr()
	certain, err := askRoute(s, source, dev)
	if source.Is4() && (errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EINVAL)) {
		// The device is down, or the source is no address of this host but a
		// transparent proxy's, about which the table answers no questions:
		// with ENETUNREACH lately, with EINVAL on older kernels.
		certain, err = askRoute(s, netip.Addr{}, dev)
	}
	if err != nil {
		return false, edge("look up route through device", err)
	}
	return certain, nil
}

// askRoute asks for the route from a source address, invalid for any.
func askRoute(s *conn.Snapshot, source netip.Addr, dev uint32) (certain bool, err error) {
	request, err := routeRequest(s, source, dev)
	if err != nil {
		return false, err
	}
	reply, err := exchange(request)
	if err != nil {
		return false, err
	}
	return routeReply(reply, dev)
}

// Sizes of struct rtmsg and struct rtnexthop.
const rtmsg, rtnexthop = 12, 8

// rtaNHID is RTA_NH_ID, which package unix lacks.
const rtaNHID = 30

// routeRequest is the RTM_GETROUTE message. With RTM_F_FIB_MATCH the kernel
// answers with what stands in the table, all next hops of it, and not with the
// neighbour that it would assume.
func routeRequest(s *conn.Snapshot, source netip.Addr, dev uint32) ([]byte, error) {
	remote := s.Remote.Addr()
	head := [rtmsg]byte{unix.AF_INET6, byte(remote.BitLen()), 0, s.TOS &^ ecnBits}
	if remote.Is4() {
		head[0] = unix.AF_INET
	}
	binary.NativeEndian.PutUint32(head[8:], unix.RTM_F_FIB_MATCH)
	enc := netlink.NewAttributeEncoder()
	if source.IsValid() {
		head[2] = byte(source.BitLen())
		enc.Bytes(unix.RTA_SRC, source.AsSlice())
	}
	enc.Bytes(unix.RTA_DST, remote.AsSlice())
	if dev != 0 {
		enc.Uint32(unix.RTA_OIF, dev)
	}
	if s.Mark != 0 {
		enc.Uint32(unix.RTA_MARK, s.Mark)
	}
	attributes, err := enc.Encode()
	if err != nil {
		return nil, err
	}
	m := netlink.Message{
		Header: netlink.Header{
			Length: uint32(unix.NLMSG_HDRLEN + rtmsg + len(attributes)),
			Type:   unix.RTM_GETROUTE,
			Flags:  netlink.Request,
		},
		Data: append(head[:], attributes...),
	}
	return m.MarshalBinary()
}

// routeReply reads the answer: whether the route has no two next hops through dev,
// 0 for any, or the kernel's errno.
func routeReply(b []byte, dev uint32) (certain bool, err error) {
	if len(b) < unix.NLMSG_HDRLEN {
		return false, fmt.Errorf("netlink message of %d bytes", len(b))
	}
	switch kind, data := binary.NativeEndian.Uint16(b[4:]), b[unix.NLMSG_HDRLEN:]; {
	case kind == unix.RTM_NEWROUTE && len(data) >= rtmsg:
		return int(binary.NativeEndian.Uint32(b)) <= len(b) && oneHop(data[rtmsg:], dev), nil
	case kind == unix.NLMSG_ERROR && len(data) >= 4:
		if code := int32(binary.NativeEndian.Uint32(data)); code < 0 {
			return false, unix.Errno(-code)
		}
	}
	return false, fmt.Errorf("netlink message %x is neither a route nor an errno", b)
}

// oneHop reports whether a route's attributes show one next hop through dev. A group
// of next hops that the kernel does not spell out (nexthop_compat_mode 0) may be many.
func oneHop(attributes []byte, dev uint32) bool {
	dec, err := netlink.NewAttributeDecoder(attributes)
	if err != nil {
		return false
	}
	hops, group, told := 0, false, false
	for dec.Next() {
		switch dec.Type() {
		case unix.RTA_OIF:
			told = true
		case rtaNHID:
			group = true
		case unix.RTA_MULTIPATH:
			told, hops = true, hopsThrough(dec.Bytes(), dev)
		}
	}
	return dec.Err() == nil && hops <= 1 && (told || !group)
}

// hopsThrough counts the entries of RTA_MULTIPATH that are of use.
func hopsThrough(b []byte, dev uint32) (n int) {
	for len(b) >= rtnexthop {
		size, flags, index := int(binary.NativeEndian.Uint16(b)), b[2], binary.NativeEndian.Uint32(b[4:])
		if flags&(unix.RTNH_F_DEAD|unix.RTNH_F_LINKDOWN) == 0 && (dev == 0 || index == dev) {
			n++
		}
		b = b[min(max((size+3)&^3, rtnexthop), len(b)):]
	}
	return n
}

// exchange sends one request to the kernel's routing and returns the beginning
// of its answer. Routing answers within the send, so that this never waits.
func exchange(request []byte) ([]byte, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	if _, err := unix.Write(fd, request); err != nil { // goes to the kernel by default
		return nil, err
	}
	buf := make([]byte, 4096) // more next hops than that have two that matter
	n, err := unix.Read(fd, buf)
	if err != nil {
		return nil, err
	}
	return buf[:n], nil
}
