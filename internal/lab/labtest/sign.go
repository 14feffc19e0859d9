// SPDX-License-Identifier: Apache-2.0

package labtest

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Sign has a connection sign its segments to an IPv4 peer (RFC 2385), or ends the test
// where the kernel cannot. The peer, which has no key, drops them from then on.
func Sign(t testing.TB, c *net.TCPConn, peer netip.Addr) {
	t.Helper()
	sig := &unix.TCPMD5Sig{Keylen: 3}
	sa := (*unix.RawSockaddrInet4)(unsafe.Pointer(&sig.Addr))
	sa.Family, sa.Addr = unix.AF_INET, peer.As4()
	copy(sig.Key[:], "key")
	err := error(nil)
	Control(t, c, func(fd int) error {
		err = unix.SetsockoptTCPMD5Sig(fd, unix.IPPROTO_TCP, unix.TCP_MD5SIG, sig)
		return nil
	})
	if errors.Is(err, unix.ENOPROTOOPT) {
		SkipOrFail(t, "needs TCP-MD5 (CONFIG_TCP_MD5SIG)")
	}
	if err != nil {
		t.Fatal(err)
	}
}
