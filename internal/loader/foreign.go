// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// ForeignInEffect reports whether programs that are not ours see the sockets made in
// a cgroup, attached to it or above: sockops and setsockopt programs, which can set
// options that ours do not see. A cgroup that is gone, or whose path is too long to
// be opened, has none.
func (p *Programs) ForeignInEffect(cgroup string) (bool, error) {
	in, err := foreignInEffect(cgroup)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENAMETOOLONG) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for programs at cgroup %q: %w", cgroup, err)
	}
	return in, nil
}

func foreignInEffect(cgroup string) (bool, error) {
	dir, err := os.Open(cgroup)
	if err != nil {
		return false, err
	}
	defer dir.Close()
	for _, a := range at(nil, nil) {
		// ENOENT: removed since it was opened.
		ids, _, err := attachedTo(int(dir.Fd()), a.typ, unix.BPF_F_QUERY_EFFECTIVE)
		if err != nil {
			return false, err
		}
		for _, id := range ids {
			if _, foreign := foreignName(id); foreign {
				return true, nil
			}
		}
	}
	return false, nil
}
