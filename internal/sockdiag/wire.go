// SPDX-License-Identifier: Apache-2.0

package sockdiag

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/sockhealth/sockhealth/internal/conn"
	"golang.org/x/sys/unix"
)

// Sizes of the kernel's structs (include/uapi/linux/inet_diag.h).
const (
	sizeofSockID  = 48 // struct inet_diag_sockid
	sizeofRequest = 56 // struct inet_diag_req_v2
	sizeofMessage = 72 // struct inet_diag_msg
)

// Attributes of an answer. Those up to 8 come only where the bit (number - 1)
// is set in the request's ext.
const (
	attrInfo     = 2
	attrTOS      = 5
	attrTClass   = 6
	attrShutdown = 8
	attrMark     = 15
	attrMD5      = 18
	attrULP      = 19
	attrCgroupID = 21

	ulpName = 1 // within attrULP
)

// noCookie stands in a request for any cookie (INET_DIAG_NOCOOKIE, twice).
const noCookie = ^uint64(0)

// allStates is every state in include/net/tcp_states.h that inet_diag lists,
// from ESTABLISHED (1) to CLOSING (11); NEW_SYN_RECV goes with SYN_RECV.
const allStates = 0xffe

// request is struct inet_diag_req_v2. Ports and addresses stand in network byte
// order, all else in the host's.
type request struct {
	family        uint8
	protocol      uint8 // 0: TCP
	ext           uint8
	states        uint32
	local, remote netip.AddrPort // an invalid address is all zeros
	ifindex       uint32
	cookie        uint64
}

// exact is the request for the one socket that id names.
func exact(id conn.ID) request {
	r := request{
		family: id.Family, local: id.Local, remote: id.Remote,
		ifindex: id.Ifindex, cookie: id.Cookie,
	}
	if r.cookie == 0 {
		r.cookie = noCookie
	}
	return r
}

// ports asks a list for these alone, 0 meaning any.
func (r request) ports(local, remote uint16) request {
	r.local = netip.AddrPortFrom(netip.Addr{}, local)
	r.remote = netip.AddrPortFrom(netip.Addr{}, remote)
	return r
}

// encode returns the 56 bytes.
func (r request) encode() []byte {
	b := make([]byte, 0, sizeofRequest)
	b = append(b, r.family, cmp.Or(r.protocol, unix.IPPROTO_TCP), r.ext, 0)
	b = binary.NativeEndian.AppendUint32(b, r.states)
	b = binary.BigEndian.AppendUint16(b, r.local.Port())
	b = binary.BigEndian.AppendUint16(b, r.remote.Port())
	b = appendAddr(b, r.family, r.local.Addr())
	b = appendAddr(b, r.family, r.remote.Addr())
	b = binary.NativeEndian.AppendUint32(b, r.ifindex)
	// Two words, the low one first on every machine.
	b = binary.NativeEndian.AppendUint32(b, uint32(r.cookie))
	return binary.NativeEndian.AppendUint32(b, uint32(r.cookie>>32))
}

// appendAddr appends 16 bytes. An IPv4 address in a request of family AF_INET6
// becomes ::ffff:a.b.c.d (kernel-facts C7).
func appendAddr(b []byte, family uint8, a netip.Addr) []byte {
	var raw [16]byte
	switch {
	case !a.IsValid():
	case family == unix.AF_INET:
		v4 := a.As4()
		copy(raw[:], v4[:])
	default:
		raw = a.As16()
	}
	return append(b, raw[:]...)
}

// check refuses an ID that does not name one connection.
func check(id conn.ID) error {
	local, remote := id.Local.Addr(), id.Remote.Addr()
	v4 := local.Is4() && remote.Is4()
	v6 := local.Is6() && remote.Is6() && !local.Is4In6() && !remote.Is4In6() &&
		local.Zone() == "" && remote.Zone() == ""
	switch {
	case id.Family == unix.AF_INET && v4, id.Family == unix.AF_INET6 && (v4 || v6):
	default:
		return fmt.Errorf("%w: addresses %s and %s in family %d", ErrInvalid, local, remote, id.Family)
	}
	if id.Local.Port() == 0 || id.Remote.Port() == 0 || remote.IsUnspecified() {
		return fmt.Errorf("%w: no connection", ErrInvalid)
	}
	return nil
}
