// SPDX-License-Identifier: Apache-2.0

package prober

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
)

func TestRouteRequest(t *testing.T) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the bytes are those of a little-endian machine")
	}
	local := func(s *conn.Snapshot) netip.Addr { return s.Local.Addr() }
	for _, tt := range []struct {
		name   string
		source func(*conn.Snapshot) netip.Addr
		with   func(*conn.Snapshot)
		flow   bool
		want   string
	}{
		{"plain", local, func(*conn.Snapshot) {}, false,
			"34000000" + "1a00" + "0100" + "00000000" + "00000000" + // 52 bytes, RTM_GETROUTE, NLM_F_REQUEST
				"02" + "20" + "20" + "00" + "00000000" + "00200000" + // IPv4, /32, /32, RTM_F_FIB_MATCH
				"0800" + "0200" + "0a5b0102" + // RTA_SRC
				"0800" + "0100" + "0a5b0202" + // RTA_DST
				"0800" + "0400" + "07000000"}, // RTA_OIF
		{"marked and expedited", local, func(s *conn.Snapshot) { s.Mark, s.TOS = 0x2a, 0xb8|1 }, false,
			"3c000000" + "1a00" + "0100" + "00000000" + "00000000" +
				"02" + "20" + "20" + "b8" + "00000000" + "00200000" +
				"0800" + "0200" + "0a5b0102" + "0800" + "0100" + "0a5b0202" + "0800" + "0400" + "07000000" +
				"0800" + "1000" + "2a000000"}, // RTA_MARK
		{"through any device", local, func(s *conn.Snapshot) { s.DstDev = 0 }, false,
			"2c000000" + "1a00" + "0100" + "00000000" + "00000000" +
				"02" + "20" + "20" + "00" + "00000000" + "00200000" +
				"0800" + "0200" + "0a5b0102" + "0800" + "0100" + "0a5b0202"},
		{"IPv6", local, func(s *conn.Snapshot) {
			s.Local, s.Remote = netip.MustParseAddrPort("[fd91::2]:40000"), netip.MustParseAddrPort("[fd91::3]:7100")
		}, false,
			"4c000000" + "1a00" + "0100" + "00000000" + "00000000" +
				"0a" + "80" + "80" + "00" + "00000000" + "00200000" +
				"1400" + "0200" + "fd910000000000000000000000000002" + "1400" + "0100" + "fd910000000000000000000000000003" +
				"0800" + "0400" + "07000000"},
		{"the connection's own", local, func(s *conn.Snapshot) { s.UID = 1234 }, true,
			"54000000" + "1a00" + "0100" + "00000000" + "00000000" +
				"02" + "20" + "20" + "00" + "00000000" + "00200000" +
				"0800" + "0200" + "0a5b0102" + "0800" + "0100" + "0a5b0202" + "0800" + "0400" + "07000000" +
				"0500" + "1b00" + "06000000" + // RTA_IP_PROTO
				"0600" + "1c00" + "9c400000" + "0600" + "1d00" + "1bbc0000" + // RTA_SPORT, RTA_DPORT
				"0800" + "1900" + "d2040000"}, // RTA_UID
		{"from anywhere", func(*conn.Snapshot) netip.Addr { return netip.Addr{} }, func(*conn.Snapshot) {}, false,
			"2c000000" + "1a00" + "0100" + "00000000" + "00000000" +
				"02" + "20" + "00" + "00" + "00000000" + "00200000" +
				"0800" + "0100" + "0a5b0202" + "0800" + "0400" + "07000000"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := snapshot("10.91.1.2:40000", "10.91.2.2:7100", func(s *conn.Snapshot) { s.DstDev = 7 }, tt.with)
			got, err := lookup{&s, tt.source(&s), s.DstDev, tt.flow}.request()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, hex.EncodeToString(got)); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

// message makes a netlink message of one kind with these bytes in it.
func message(kind uint16, data ...byte) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(unix.NLMSG_HDRLEN+len(data)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	return append(append(b, make([]byte, 10)...), data...)
}

func TestRouteReply(t *testing.T) {
	code := func(n int32) []byte { return binary.NativeEndian.AppendUint32(nil, uint32(n)) }
	if _, err := routeReply(message(unix.RTM_NEWROUTE, make([]byte, rtmsg)...)); err != nil {
		t.Errorf("a route: %v", err)
	}
	for _, errno := range []unix.Errno{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EINVAL, unix.ENODEV} {
		if _, err := routeReply(message(unix.NLMSG_ERROR, code(-int32(errno))...)); !errors.Is(err, errno) {
			t.Errorf("%v arrives as %v", errno, err)
		}
	}
	for name, b := range map[string][]byte{
		"nothing":           nil,
		"half a header":     message(unix.RTM_NEWROUTE)[:8],
		"an acknowledgment": message(unix.NLMSG_ERROR, code(0)...),
		"a positive errno":  message(unix.NLMSG_ERROR, code(5)...),
		"half an errno":     message(unix.NLMSG_ERROR),
		"another message":   message(unix.RTM_NEWLINK, make([]byte, 16)...),
	} {
		if _, err := routeReply(b); err == nil {
			t.Errorf("%s passes for a route", name)
		}
	}
}

// nextHop is an entry of RTA_MULTIPATH with a gateway.
func nextHop(flags byte, dev uint32) []byte {
	b := append(binary.NativeEndian.AppendUint16(nil, 16), flags, 0)
	b = binary.NativeEndian.AppendUint32(b, dev)
	return append(b, attribute(unix.RTA_GATEWAY, 10, 91, 1, 1)...)
}

func several(hops ...[]byte) []byte {
	return attribute(unix.RTA_MULTIPATH, bytes.Join(hops, nil)...)
}

// TestHops: of several next hops those count that lead through the device.
func TestHops(t *testing.T) {
	oif := attribute(unix.RTA_OIF, binary.NativeEndian.AppendUint32(nil, 7)...)
	group := attribute(rtaNHID, 1, 0, 0, 0)
	for name, tt := range map[string]struct {
		attributes []byte
		dev        uint32
		want       bool
	}{
		"one":                         {oif, 7, true},
		"one, of a group":             {append(group, oif...), 7, true},
		"a group, not spelled out":    {group, 7, false},
		"two devices":                 {several(nextHop(0, 7), nextHop(0, 8)), 7, true},
		"two devices, either of them": {several(nextHop(0, 7), nextHop(0, 8)), 0, false},
		"two on the device":           {several(nextHop(0, 7), nextHop(0, 8), nextHop(0, 7)), 7, false},
		"two, one of them dead":       {several(nextHop(0, 7), nextHop(unix.RTNH_F_DEAD, 7)), 7, true},
		"two, one without a carrier":  {several(nextHop(unix.RTNH_F_LINKDOWN, 7), nextHop(0, 7)), 0, true},
		"cut off":                     {several(nextHop(0, 7), nextHop(0, 8))[:30], 7, false},
	} {
		b := message(unix.RTM_NEWROUTE, append(make([]byte, rtmsg), tt.attributes...)...)
		if r, err := routeReply(b); err != nil || r.oneHop(tt.dev) != tt.want {
			t.Errorf("%s: certain %t, %v, want %t", name, r.oneHop(tt.dev), err, tt.want)
		}
		if r, err := routeReply(b[:len(b)-4]); r.oneHop(tt.dev) || r.same(r) {
			t.Errorf("%s, the end missing: certain, %v", name, err)
		}
	}
}

// TestSameRoute: whatever differs is another route, but for what is told of its age.
func TestSameRoute(t *testing.T) {
	entry := func(table byte, attributes ...[]byte) route {
		head := make([]byte, rtmsg)
		head[4] = table
		r, err := routeReply(message(unix.RTM_NEWROUTE, append(head, bytes.Join(attributes, nil)...)...))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	via := func(last byte) []byte { return attribute(unix.RTA_GATEWAY, 10, 91, 1, last) }
	age := func(n byte) []byte { return attribute(unix.RTA_CACHEINFO, n, 0, 0, 0) }
	r := entry(254, via(1), age(1))
	if one, other := entry(254, several(nextHop(0, 7), nextHop(0, 8))), entry(254, several(nextHop(0, 8), nextHop(0, 7))); !one.same(other) {
		t.Error("another order: not the same")
	}
	for name, tt := range map[string]struct {
		other route
		want  bool
	}{
		"itself":          {r, true},
		"older":           {entry(254, via(1), age(2)), true},
		"another table":   {entry(100, via(1), age(1)), false},
		"another gateway": {entry(254, via(2), age(1)), false},
		"by a device":     {entry(254, via(1), age(1), attribute(unix.RTA_OIF, 7, 0, 0, 0)), false},
		"unreadable":      {entry(254, via(1), age(1), []byte{9, 0, 0, 0}), false},
	} {
		if got := r.same(tt.other); got != tt.want {
			t.Errorf("%s: same %t, want %t", name, got, tt.want)
		}
	}
}

func attribute(kind uint16, data ...byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(data)))
	return append(binary.NativeEndian.AppendUint16(b, kind), data...)
}

func FuzzRouteReply(f *testing.F) {
	f.Add(message(unix.RTM_NEWROUTE, make([]byte, rtmsg)...))
	f.Add(message(unix.NLMSG_ERROR, 0xff, 0xff, 0xff, 0xff))
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := routeReply(b); err == nil && binary.NativeEndian.Uint16(b[4:]) != unix.RTM_NEWROUTE {
			t.Errorf("%x passes for a route", b)
		}
	})
}
