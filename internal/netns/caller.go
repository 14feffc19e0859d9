// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// Caller returns the network namespace that a socket belongs to. For a
// connection accepted from a Unix socket that is the namespace of the client's
// end, fixed when the client made its socket, free of the races that a look at
// /proc by the client's process id has (kernel-facts S18). For the end that
// connected it is the connecting process's own.
//
// It needs CAP_NET_ADMIN over that namespace: the error wraps ErrPermission
// where the client sits in a user namespace that this process has no say in.
func Caller(c syscall.Conn) (ns *NS, err error) {
	err = control(c, func(sock int) (err error) {
		ns, err = FromSocket(sock)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("ask who calls: %w", err)
	}
	return ns, nil
}

// FromSocket returns the network namespace that the socket with this descriptor
// belongs to. It needs CAP_NET_ADMIN over that namespace: the error wraps
// ErrPermission without.
func FromSocket(sock int) (*NS, error) {
	fd, err := unix.IoctlRetInt(sock, unix.SIOCGSKNS)
	if err != nil {
		return nil, fmt.Errorf("ask socket for its network namespace: %w", edge(err))
	}
	ns, err := FromFD(fd)
	if err != nil {
		return nil, fmt.Errorf("ask socket for its network namespace: %w", err)
	}
	return ns, nil
}
