// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// OwnerUID returns the user that owns the user namespace which the namespace
// belongs to: who made that user namespace, and holds every capability in it.
// For a namespace of the initial user namespace that is 0. The number is as the
// calling process's user namespace has it; read from the initial one it is the
// global one, as in SO_PEERCRED and in the kernel's sockets.
//
// The error wraps ErrPermission where the calling process's user namespace is
// neither that one nor one above it.
func (ns *NS) OwnerUID() (uint32, error) {
	var uid uint32
	err := ns.control(func(fd int) error {
		user, err := unix.IoctlRetInt(fd, unix.NS_GET_USERNS)
		if err != nil {
			return edge(err)
		}
		defer unix.Close(user)
		uid, err = unix.IoctlGetUint32(user, unix.NS_GET_OWNER_UID)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("ask who owns network namespace %d: %w", ns.inode, err)
	}
	return uid, nil
}
