// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// New creates a namespace with its loopback device up and nothing else in it.
// It has no name: it is gone when the last handle, process and socket of it is,
// also when this process dies.
func New() (*NS, error) {
	ns, err := create()
	if err != nil {
		return nil, fmt.Errorf("create network namespace: %w", err)
	}
	return ns, nil
}

// create leaves the thread where it was. A thread thrown away instead might be
// the main one, which Go cannot let die: it would stay behind in the new
// namespace, keep it alive, and be taken for the process's own by everybody who
// looks at /proc/PID/ns/net.
func create() (*NS, error) {
	runtime.LockOSThread()
	home, err := thread()
	if err != nil {
		runtime.UnlockOSThread()
		return nil, err
	}
	defer unix.Close(home.fd)
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("unshare: %w", edge(err))
	}
	defer home.back()
	ns, err := Current()
	if err != nil {
		return nil, err
	}
	if err := loopbackUp(); err != nil {
		_ = ns.Close()
		return nil, fmt.Errorf("bring up lo: %w", edge(err))
	}
	return ns, nil
}

// loopbackUp brings up lo in the thread's namespace.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, req); err != nil {
		return err
	}
	req.SetUint16(req.Uint16() | unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req)
}
