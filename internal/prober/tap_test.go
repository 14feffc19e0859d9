// SPDX-License-Identifier: Apache-2.0

package prober

import (
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/netns"
)

// tap listens to every device of a namespace.
type tap struct{ fd int }

// sighting is a packet at a device, on its way in or out.
type sighting struct {
	heard
	dev int
	out bool
}

func listenIn(t testing.TB, ns *netns.NS) *tap {
	t.Helper()
	k := &tap{fd: -1}
	in(t, ns, func() (err error) {
		const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8
		k.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, all)
		return err
	})
	t.Cleanup(k.close)
	_ = unix.SetsockoptInt(k.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20)
	return k
}

// close may be called more than once.
func (k *tap) close() {
	if k.fd >= 0 {
		_ = unix.Close(k.fd)
	}
	k.fd = -1
}

// next returns the next TCP segment between two ends, in either direction, and
// false if none comes within the time.
func (k *tap) next(t testing.TB, wait time.Duration, a, b netip.AddrPort) (sighting, bool) {
	t.Helper()
	s, _, ok := k.find(t, wait, func(s sighting) bool {
		return s.src == a && s.dst == b || s.src == b && s.dst == a
	})
	return s, ok
}

// find returns the next TCP segment that pleases, and the number
// of other packets (ARP and neighbour discovery among them) that went by.
func (k *tap) find(t testing.TB, wait time.Duration, pleases func(sighting) bool) (sighting, int, bool) {
	t.Helper()
	others := 0
	for end := time.Now().Add(wait); ; {
		left := time.Until(end)
		tv := unix.NsecToTimeval(max(left, time.Millisecond).Nanoseconds())
		if err := unix.SetsockoptTimeval(k.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
			t.Fatal(err)
		}
		var b [1 << 16]byte
		n, from, err := unix.Recvfrom(k.fd, b[:], 0)
		if err == unix.EAGAIN || left <= 0 {
			return sighting{}, others, false
		}
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		h, err := hear(b[:n])
		ll := from.(*unix.SockaddrLinklayer)
		s := sighting{heard: h, dev: ll.Ifindex, out: ll.Pkttype == unix.PACKET_OUTGOING}
		if err == nil && pleases(s) {
			return s, others, true
		}
		others++
	}
}

// probe returns the next bare ACK that is one below the given sequence number.
func (k *tap) probe(t testing.TB, from, to netip.AddrPort, una uint32) (sighting, bool) {
	t.Helper()
	s, _, ok := k.find(t, patience, func(s sighting) bool {
		return s.src == from && s.dst == to && s.payload == 0 && s.seq == una-1
	})
	return s, ok
}

// empty throws away what has been heard so far.
func (k *tap) empty() {
	var b [64]byte
	for {
		if _, _, err := unix.Recvfrom(k.fd, b[:], unix.MSG_DONTWAIT|unix.MSG_TRUNC); err != nil && err != unix.EINTR {
			return
		}
	}
}
