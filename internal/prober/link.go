// SPDX-License-Identifier: Apache-2.0

package prober

import (
	"encoding/binary"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// linkDown reports whether the device with this index, in the calling thread's
// namespace, is down or has no carrier. Of 0, and of one that cannot be asked about,
// it knows nothing.
//
// A device that is set down takes its routes along, that of every socket with it,
// and its IPv6 addresses, too. What remains is the index in the socket.
func linkDown(dev uint32) bool {
	if dev == 0 {
		return false
	}
	var body [unix.SizeofIfInfomsg]byte
	binary.NativeEndian.PutUint32(body[4:], dev)
	m := netlink.Message{
		Header: netlink.Header{
			Length: uint32(unix.NLMSG_HDRLEN + len(body)), Type: unix.RTM_GETLINK, Flags: netlink.Request,
		},
		Data: body[:],
	}
	request, err := m.MarshalBinary()
	if err != nil {
		return false
	}
	reply, err := exchange(request)
	if err != nil || len(reply) < unix.NLMSG_HDRLEN+len(body) ||
		binary.NativeEndian.Uint16(reply[4:]) != unix.RTM_NEWLINK {
		return false
	}
	flags := binary.NativeEndian.Uint32(reply[unix.NLMSG_HDRLEN+8:])
	return flags&unix.IFF_LOWER_UP == 0 // which no device has that is down
}
