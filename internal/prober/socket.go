// SPDX-License-Identifier: Apache-2.0

package prober

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
)

// socket is a raw socket that takes whole IP packets, connected to the peer
// over the connection's source, device and mark. It receives nothing.
type socket struct {
	fd   int
	ip4  bool
	sent Sent // what to say of what it sends
}

// option is one socket option with an integer value.
type option struct {
	doing       string
	level, name int
	value       int
}

// open makes the socket in the calling thread's network namespace. dev 0 binds
// it to no device. Connecting it looks the route up and sends nothing.
func open(s *conn.Snapshot, dev uint32) (*socket, error) {
	k := &socket{ip4: s.Remote.Addr().Is4()}
	family := unix.AF_INET6
	if k.ip4 {
		family = unix.AF_INET
	}
	var err error
	k.fd, err = unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_RAW)
	if err != nil {
		return nil, edge("open raw socket", err)
	}
	if err := k.follow(s, dev); err != nil {
		k.close()
		return nil, err
	}
	return k, nil
}

// follow gives the socket the connection's way.
func (k *socket) follow(s *conn.Snapshot, dev uint32) error {
	for _, o := range k.options(s, dev) {
		if err := unix.SetsockoptInt(k.fd, o.level, o.name, o.value); err != nil {
			return edge(o.doing, err)
		}
	}
	if err := unix.Bind(k.fd, k.address(s.Local.Addr())); err != nil {
		return edge("bind to source address", err)
	}
	err := unix.Connect(k.fd, k.address(s.Remote.Addr()))
	if err == unix.EINVAL {
		err = unix.EHOSTUNREACH // what a blackhole route answers
	}
	if err != nil {
		return edge("look up route", err)
	}
	return nil
}

// options lists what to set, in this order: a link-local source can be bound
// only after its device.
func (k *socket) options(s *conn.Snapshot, dev uint32) []option {
	level, transparent, recvErr, tos := unix.IPPROTO_IPV6, unix.IPV6_TRANSPARENT, unix.IPV6_RECVERR, unix.IPV6_TCLASS
	if k.ip4 {
		level, transparent, recvErr, tos = unix.IPPROTO_IP, unix.IP_TRANSPARENT, unix.IP_RECVERR, unix.IP_TOS
	}
	list := make([]option, 0, 5)
	// A transparent proxy's source is another host's address. IP_FREEBIND
	// would let us bind it, but not find a route from it.
	list = append(list, option{"allow foreign source address", level, transparent, 1})
	// Without this the kernel keeps to itself that a full queue took the segment.
	list = append(list, option{"ask for send errors", level, recvErr, 1})
	if dev != 0 {
		list = append(list, option{"bind to device", unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, int(dev)})
	}
	if s.Mark != 0 {
		list = append(list, option{"set mark", unix.SOL_SOCKET, unix.SO_MARK, int(s.Mark)})
	}
	// The header carries it; here it serves routing rules and, over IPv4, the
	// priority that the kernel derives from it.
	if v := s.TOS &^ ecnBits; v != 0 {
		list = append(list, option{"set type of service", level, tos, int(v)})
	}
	return list
}

// send sends the connection's keepalive.
func (k *socket) send(s *conn.Snapshot) error {
	ttl, err := k.ttl()
	if err != nil {
		return edge("read hop limit", err)
	}
	var label uint32
	switch {
	case k.ip4:
	case s.FlowLabel != 0:
		label = s.FlowLabel
	default:
		label = readLabels().of(s.TxHash)
	}
	g := keepalive(s, conn.Now())
	g.ttl, g.flowLabel = ttl, label
	var buf [maxSegment]byte
	if _, err := unix.Write(k.fd, g.append(buf[:0])); err != nil {
		return edge("send segment", err)
	}
	return nil
}

// ttl returns what the kernel gives packets on this socket's route.
func (k *socket) ttl() (uint8, error) {
	level, name := unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS
	if k.ip4 {
		level, name = unix.IPPROTO_IP, unix.IP_TTL
	}
	v, err := unix.GetsockoptInt(k.fd, level, name)
	return uint8(v), err
}

func (k *socket) close() { _ = unix.Close(k.fd) }

func (k *socket) address(a netip.Addr) unix.Sockaddr {
	if k.ip4 {
		return &unix.SockaddrInet4{Addr: a.As4()}
	}
	return &unix.SockaddrInet6{Addr: a.As16()}
}
