// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/netns"
)

// ErrNone says that no connection tracking knows the connection: it is not
// loaded, not used in this namespace, cannot be asked, or has no such entry.
var ErrNone = errors.New("connection is not tracked")

// Other returns the address of who is really at the other end of the connection
// with these two addresses, as its socket has them. It is remote itself where
// nothing is translated. It takes one request, in constant time.
//
// Errors wrap ErrNone where it is that; anything else is unexpected.
func Other(ns *netns.NS, local, remote netip.AddrPort) (netip.AddrPort, error) {
	other, err := ask(ns, local, remote)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("ask for translation of %s -> %s: %w", local, remote, err)
	}
	return other, nil
}

func ask(ns *netns.NS, local, remote netip.AddrPort) (netip.AddrPort, error) {
	if !loaded() {
		return netip.AddrPort{}, ErrNone
	}
	question, err := request(local, remote)
	if err != nil {
		return netip.AddrPort{}, err
	}
	var answer []byte
	if err := ns.Do(func() (err error) { answer, err = exchange(question); return err }); err != nil {
		return netip.AddrPort{}, edge(err)
	}
	e, err := reply(answer)
	if err != nil {
		return netip.AddrPort{}, edge(err)
	}
	return e.other(local, remote), nil
}

// loaded reports whether the kernel has connection tracking now. Asking would
// load it, onto a host that does without.
func loaded() bool {
	_, err := os.Stat("/sys/module/nf_conntrack")
	if !errors.Is(err, fs.ErrNotExist) {
		return true
	}
	_, err = os.Stat("/sys/module")
	return err != nil // there is no sysfs to tell
}

// edge turns an errno that means "none" into ErrNone: no such entry, or no
// handler for such questions.
func edge(err error) error {
	for _, none := range []unix.Errno{unix.ENOENT, unix.EINVAL, unix.EOPNOTSUPP, unix.EPROTONOSUPPORT} {
		if errors.Is(err, none) {
			return fmt.Errorf("%w: %w", ErrNone, err)
		}
	}
	return err
}

// exchange sends one request and returns the answer, in the calling thread's
// namespace. The kernel answers within the send, so that nothing is to be awaited.
func exchange(question []byte) ([]byte, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	if _, err := unix.Write(fd, question); err != nil { // goes to the kernel by default
		return nil, err
	}
	buf := make([]byte, 4096)
	n, err := unix.Read(fd, buf)
	if err != nil {
		return nil, err
	}
	return buf[:n], nil
}
