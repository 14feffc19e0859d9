// SPDX-License-Identifier: Apache-2.0

package prober

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
)

// hop says whether a segment of ours takes the connection's next hop.
type hop uint8

const (
	hopApart   hop = iota // nothing says so
	hopSeveral            // the route has several, and ours need not take the same
	hopSame               // it does
)

// hopOf asks the routing table for the way of a segment of ours through dev, 0 for
// any, and whether it is the connection's own. The kernel chooses among several next
// hops by the ports, which a raw socket has none of, or takes the first on the device
// that it is bound to; and rules by protocol, port or user may send the connection
// another way (kernel-facts P8). It returns ErrNoRoute if there is no route.
//
// IPv4 has to be asked: a socket bound to a device that no route leads through
// sends all the same. The kernel then takes the peer for a neighbour on that
// link, asks for it by ARP and drops the segment, and a connection that the
// kernel itself would send another way looks dead. IPv6 refuses by itself.
func hopOf(s *conn.Snapshot, dev uint32) (hop, error) {
	q := lookup{s: s, source: s.Local.Addr(), dev: dev}
	ours, err := q.ask()
	if q.source.Is4() && (errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EINVAL)) {
		// The device is down, or the source is no address of this host but a
		// transparent proxy's, about which the table answers no questions:
		// with ENETUNREACH lately, with EINVAL on older kernels.
		q.source = netip.Addr{}
		ours, err = q.ask()
	}
	if err != nil {
		return hopApart, edge("look up route through device", err)
	}
	q.flow = true
	own, err := q.ask()
	switch {
	case err != nil || !ours.same(own):
		return hopApart, nil
	case !ours.oneHop(dev):
		return hopSeveral, nil
	}
	return hopSame, nil
}

// lookup is one question to the routing table.
type lookup struct {
	s      *conn.Snapshot
	source netip.Addr // invalid: any
	dev    uint32     // 0: any
	flow   bool       // of the connection's own packets, not of a raw socket's
}

func (q lookup) ask() (route, error) {
	request, err := q.request()
	if err != nil {
		return route{}, err
	}
	reply, err := exchange(request)
	if err != nil {
		return route{}, err
	}
	return routeReply(reply)
}

// Sizes of struct rtmsg and struct rtnexthop.
const rtmsg, rtnexthop = 12, 8

// rtaNHID is RTA_NH_ID, which package unix lacks.
const rtaNHID = 30

// request is the RTM_GETROUTE message. With RTM_F_FIB_MATCH the kernel
// answers with what stands in the table, all next hops of it, and not with the
// neighbour that it would assume. Without the connection's flow it takes this
// process's user, as it does for a raw socket.
func (q lookup) request() ([]byte, error) {
	s, remote := q.s, q.s.Remote.Addr()
	head := [rtmsg]byte{unix.AF_INET6, byte(remote.BitLen()), 0, s.TOS &^ ecnBits}
	if remote.Is4() {
		head[0] = unix.AF_INET
	}
	binary.NativeEndian.PutUint32(head[8:], unix.RTM_F_FIB_MATCH)
	enc := netlink.NewAttributeEncoder()
	if q.source.IsValid() {
		head[2] = byte(q.source.BitLen())
		enc.Bytes(unix.RTA_SRC, q.source.AsSlice())
	}
	enc.Bytes(unix.RTA_DST, remote.AsSlice())
	if q.dev != 0 {
		enc.Uint32(unix.RTA_OIF, q.dev)
	}
	if s.Mark != 0 {
		enc.Uint32(unix.RTA_MARK, s.Mark)
	}
	if q.flow {
		enc.Uint8(unix.RTA_IP_PROTO, unix.IPPROTO_TCP)
		enc.Bytes(unix.RTA_SPORT, binary.BigEndian.AppendUint16(nil, s.Local.Port()))
		enc.Bytes(unix.RTA_DPORT, binary.BigEndian.AppendUint16(nil, s.Remote.Port()))
		enc.Uint32(unix.RTA_UID, s.UID)
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

// route is an answer of the routing table's.
type route struct {
	head, attributes []byte
	whole            bool // nothing was cut off
}

// routeReply reads the answer: a route, or the kernel's errno.
func routeReply(b []byte) (route, error) {
	if len(b) < unix.NLMSG_HDRLEN {
		return route{}, fmt.Errorf("netlink message of %d bytes", len(b))
	}
	switch kind, data := binary.NativeEndian.Uint16(b[4:]), b[unix.NLMSG_HDRLEN:]; {
	case kind == unix.RTM_NEWROUTE && len(data) >= rtmsg:
		return route{data[:rtmsg], data[rtmsg:], int(binary.NativeEndian.Uint32(b)) <= len(b)}, nil
	case kind == unix.NLMSG_ERROR && len(data) >= 4:
		if code := int32(binary.NativeEndian.Uint32(data)); code < 0 {
			return route{}, unix.Errno(-code)
		}
	}
	return route{}, fmt.Errorf("netlink message %x is neither a route nor an errno", b)
}

// same reports whether two answers show one entry of one table. What is told of
// its age differs from one moment to the next.
func (r route) same(other route) bool {
	a, errA := r.lasting()
	b, errB := other.lasting()
	return r.whole && other.whole && errA == nil && errB == nil && bytes.Equal(a, b)
}

// lasting returns what does not change while the entry stands. Over IPv6 the next hop
// that the flow asked about would take comes first.
func (r route) lasting() ([]byte, error) {
	dec, err := netlink.NewAttributeDecoder(r.attributes)
	if err != nil {
		return nil, err
	}
	out := bytes.Clone(r.head)
	for dec.Next() {
		b := dec.Bytes()
		switch dec.Type() {
		case unix.RTA_CACHEINFO:
			continue
		case unix.RTA_MULTIPATH:
			hops := slices.Collect(nextHops(b))
			slices.SortFunc(hops, bytes.Compare)
			b = bytes.Join(hops, nil)
		}
		out = append(binary.NativeEndian.AppendUint16(out, dec.Type()), b...)
	}
	return out, dec.Err()
}

// oneHop reports whether the route has certainly no two next hops through dev, 0 for
// any. A group of next hops that the kernel does not spell out (nexthop_compat_mode 0)
// may be many.
func (r route) oneHop(dev uint32) bool {
	dec, err := netlink.NewAttributeDecoder(r.attributes)
	if err != nil || !r.whole {
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
	for hop := range nextHops(b) {
		flags, index := hop[2], binary.NativeEndian.Uint32(hop[4:])
		if flags&(unix.RTNH_F_DEAD|unix.RTNH_F_LINKDOWN) == 0 && (dev == 0 || index == dev) {
			n++
		}
	}
	return n
}

// nextHops takes RTA_MULTIPATH apart.
func nextHops(b []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for len(b) >= rtnexthop {
			size := int(binary.NativeEndian.Uint16(b))
			size = min(max((size+3)&^3, rtnexthop), len(b))
			if !yield(b[:size]) {
				return
			}
			b = b[size:]
		}
	}
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
