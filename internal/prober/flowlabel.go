// SPDX-License-Identifier: Apache-2.0

package prober

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"strconv"

	"golang.org/x/sys/unix"
)

// Values of net.ipv6.auto_flowlabels. Between them are 1 (label every socket
// that does not object) and 3 (label them all).
const (
	autoLabelsOff   = 0
	autoLabelsOptIn = 2
)

const (
	labelMask      = 0x000fffff
	labelStateless = 0x00080000
)

// labels are the rules for IPv6 flow labels in one network namespace.
type labels struct {
	auto      int  // net.ipv6.auto_flowlabels
	stateless bool // net.ipv6.flowlabel_state_ranges: computed labels have the top bit set
}

// of returns the label that the kernel puts on the segments of a socket with
// this flow hash (ip6_make_flowlabel), as the 20-bit number in network order.
// The kernel masks the hash as if it were in network order already, which on a
// little-endian machine takes other bits of it than on a big-endian one.
func (l labels) of(hash uint32) uint32 {
	if l.auto == autoLabelsOff || l.auto == autoLabelsOptIn {
		return 0
	}
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], bits.RotateLeft32(hash, 16))
	label := binary.BigEndian.Uint32(b[:]) & labelMask
	if l.stateless {
		label |= labelStateless
	}
	return label
}

// readLabels reads the rules of the calling thread's network namespace. What
// cannot be read has the kernel's default.
func readLabels() labels {
	return labels{
		auto:      sysctl("/proc/sys/net/ipv6/auto_flowlabels", 1),
		stateless: sysctl("/proc/sys/net/ipv6/flowlabel_state_ranges", 0) != 0,
	}
}

// sysctl reads a small number with three system calls; os.ReadFile takes more.
func sysctl(path string, otherwise int) int {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return otherwise
	}
	defer func() { _ = unix.Close(fd) }()
	var b [16]byte
	n, err := unix.Read(fd, b[:])
	if err != nil {
		return otherwise
	}
	v, err := strconv.Atoi(string(bytes.TrimSpace(b[:n])))
	if err != nil {
		return otherwise
	}
	return v
}
