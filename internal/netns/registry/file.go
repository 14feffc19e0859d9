// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/netns"
)

// file opens the namespace that another's open file keeps: the one it is a
// descriptor of, or that of the socket. What there is by now may be another file.
// netns.ErrNotNetns says that inode is a namespace of another kind.
func (s *scan) file(tid, fd int, inode uint32) (*netns.NS, error) {
	path := filepath.Join(s.thread(tid), "fd", strconv.Itoa(fd))
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return nil, s.unlessEnded(tid, err)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFSOCK {
		ns, err := socket(tid, fd)
		return ns, s.unlessEnded(tid, err)
	}
	ns, err := netns.OpenAside(path)
	if err != nil && !netns.Leads(path, inode) {
		return nil, unix.ENOENT // closed, and the number is another file's
	}
	return ns, err
}

// pidfdThread makes pidfd_open take any thread (Linux 6.9).
const pidfdThread = unix.O_EXCL

// socket opens the namespace of a socket. For that the socket is ours, too, for a
// moment.
func socket(tid, fd int) (*netns.NS, error) {
	pidfd, err := unix.PidfdOpen(tid, 0)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		pidfd, err = unix.PidfdOpen(tid, pidfdThread)
	}
	if err != nil {
		return nil, fmt.Errorf("open process of thread %d: %w", tid, err)
	}
	defer unix.Close(pidfd)
	sock, err := unix.PidfdGetfd(pidfd, fd, 0)
	if err != nil {
		return nil, fmt.Errorf("take over descriptor %d of thread %d: %w", fd, tid, err)
	}
	defer unix.Close(sock)
	var st unix.Stat_t
	if err := unix.Fstat(sock, &st); err != nil {
		return nil, fmt.Errorf("stat descriptor %d of thread %d: %w", fd, tid, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return nil, unix.ENOENT // closed, and the number is another file's
	}
	return netns.FromSocket(sock)
}
