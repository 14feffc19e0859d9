// SPDX-License-Identifier: Apache-2.0

package census

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// fileidKernfs is the kind of a handle that holds nothing but the id (FILEID_KERNFS).
const fileidKernfs = 0xfe

// open returns the path of the cgroup with this id, below the root. ESTALE says that
// it is gone, EPERM that this process may not ask.
func (c *Census) open(id uint64) (string, error) {
	handle := unix.NewFileHandle(fileidKernfs, binary.NativeEndian.AppendUint64(nil, id))
	fd, err := unix.OpenByHandleAt(int(c.dir.Fd()), handle, unix.O_PATH|unix.O_CLOEXEC)
	if err != nil {
		return "", os.NewSyscallError("open_by_handle_at", err)
	}
	defer unix.Close(fd)
	path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return "", err
	}
	return c.below(strings.TrimSuffix(path, " (deleted)")), nil
}

// below returns a path as seen from the root; "" where it is outside of it.
func (c *Census) below(path string) string {
	rel, err := filepath.Rel(c.root, path)
	if err != nil || !filepath.IsLocal(rel) {
		return ""
	}
	return "/" + rel
}
