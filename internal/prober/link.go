// SPDX-License-Identifier: Apache-2.0

package prober

import "golang.org/x/sys/unix"

// linkDown reports whether the device with this index, in the calling thread's
// namespace, is down or has no carrier. Of 0, and of one that cannot be asked about,
// it knows nothing. (ioctl, since netlink tells of a device under the lock that whoever
// configures devices may hold for long.)
//
// A device that is set down takes its routes along, that of every socket with it,
// and its IPv6 addresses, too. What remains is the index in the socket.
func linkDown(dev uint32) bool {
	if dev == 0 {
		return false
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }()
	link, err := unix.NewIfreq("")
	if err != nil {
		return false
	}
	link.SetUint32(dev)
	for _, ask := range []uint{unix.SIOCGIFNAME, unix.SIOCGIFFLAGS} {
		if err := unix.IoctlIfreq(fd, ask, link); err != nil {
			return false
		}
	}
	const works = unix.IFF_UP | unix.IFF_RUNNING
	return link.Uint16()&works != works
}
