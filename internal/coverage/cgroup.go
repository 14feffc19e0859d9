// SPDX-License-Identifier: Apache-2.0

package coverage

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// hierarchyRoot is the inode number of the root of the cgroup v2 hierarchy.
const hierarchyRoot = 1

// cgroups are the programs' cgroup and those below it, by id.
type cgroups struct {
	whole bool // it is the hierarchy's root: every socket's is below it
	paths map[uint64]string
}

// readCgroups walks over the cgroups at and below a path. What goes meanwhile is
// left out.
func readCgroups(root string) (*cgroups, error) {
	c := &cgroups{paths: make(map[uint64]string)}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			return nil
		}
		var st unix.Stat_t
		if err == nil {
			err = unix.Stat(path, &st)
		}
		if path != root && gone(err) {
			return nil
		}
		if err != nil {
			return err
		}
		c.paths[st.Ino] = path
		c.whole = c.whole || path == root && st.Ino == hierarchyRoot
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list cgroups at %q: %w", root, err)
	}
	return c, nil
}

// gone reports whether a cgroup was removed while it was read.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) }

// outside reports whether the programs do not see the sockets of a cgroup. 0 is
// one that the kernel did not tell. One that was removed counts as outside where
// its socket lives on.
func (c *cgroups) outside(id uint64) bool { return !c.whole && id != 0 && c.paths[id] == "" }
