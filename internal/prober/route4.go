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

// routeExists4 asks the routing table for a route through dev and returns
// ErrNoRoute if it has none.
//
// IPv4 has to be asked: a socket bound to a device that no route leads through
// sends all the same. The kernel then takes the peer for a neighbour on that
// link, asks for it by ARP and drops the segment, and a connection that the
// kernel itself would send another way looks dead. IPv6 refuses by itself.
func routeExists4(s *conn.Snapshot, dev uint32) error {
	source := s.Local.Addr()
	err := askRoute4(s, source, dev)
	if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EINVAL) {
		// The device is down, or the source is no address of this host but a
		// transparent proxy's, about which the table answers no questions:
		// with ENETUNREACH lately, with EINVAL on older kernels.
		err = askRoute4(s, netip.Addr{}, dev)
	}
	if err != nil {
		return edge("look up route through device", err)
	}
	return nil
}

// askRoute4 asks for the route from a source address, invalid for any.
func askRoute4(s *conn.Snapshot, source netip.Addr, dev uint32) error {
	request, err := routeRequest(s, source, dev)
	if err != nil {
		return err
	}
	reply, err := exchange(request)
	if err != nil {
		return err
	}
	return routeReply(reply)
}

// rtmsg is the size of struct rtmsg.
const rtmsg = 12

// routeRequest is the RTM_GETROUTE message. With RTM_F_FIB_MATCH the kernel
// answers from the table alone, not with the neighbour that it would assume.
func routeRequest(s *conn.Snapshot, source netip.Addr, dev uint32) ([]byte, error) {
	head := [rtmsg]byte{unix.AF_INET, 32, 0, s.TOS &^ ecnBits}
	binary.NativeEndian.PutUint32(head[8:], unix.RTM_F_FIB_MATCH)
	enc := netlink.NewAttributeEncoder()
	if source.IsValid() {
		head[2] = 32
		enc.Bytes(unix.RTA_SRC, source.AsSlice())
	}
	enc.Bytes(unix.RTA_DST, s.Remote.Addr().AsSlice())
	enc.Uint32(unix.RTA_OIF, dev)
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

// routeReply returns nil where the message is a route, or its errno. The rest of
// the message is of no interest and may be cut off.
func routeReply(b []byte) error {
	if len(b) < unix.NLMSG_HDRLEN {
		return fmt.Errorf("netlink message of %d bytes", len(b))
	}
	switch kind, data := binary.NativeEndian.Uint16(b[4:]), b[unix.NLMSG_HDRLEN:]; {
	case kind == unix.RTM_NEWROUTE:
		return nil
	case kind == unix.NLMSG_ERROR && len(data) >= 4:
		if code := int32(binary.NativeEndian.Uint32(data)); code < 0 {
			return unix.Errno(-code)
		}
	}
	return fmt.Errorf("netlink message %x is neither a route nor an errno", b)
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
	buf := make([]byte, 64)
	n, err := unix.Read(fd, buf)
	if err != nil {
		return nil, err
	}
	return buf[:n], nil
}
