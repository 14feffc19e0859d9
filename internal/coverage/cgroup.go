// SPDX-License-Identifier: Apache-2.0

package coverage

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/cgroup"
)

// hierarchyRoot is the inode number of the root of the cgroup v2 hierarchy.
const hierarchyRoot = 1

// cgroups are the programs' cgroup and those below it, by id. Where none is known
// yet, read them.
type cgroups struct {
	root string // the path of the programs' own

	done  bool
	err   error // why they cannot be read
	whole bool  // the programs' own is the hierarchy's root: every socket's is below it
	paths map[uint64]string
}

// read reads them, once. What goes meanwhile is left out.
func (c *cgroups) read(ctx context.Context, p *pace) error {
	if c.done {
		return c.err
	}
	err := c.walk(ctx, p)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		err = fmt.Errorf("list cgroups at %q: %w", c.root, err)
	}
	c.done, c.err = true, err
	return err
}

func (c *cgroups) walk(ctx context.Context, p *pace) error {
	dir, err := os.Open(c.root)
	if err != nil {
		return err
	}
	defer dir.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	c.whole, c.paths = st.Ino == hierarchyRoot, map[uint64]string{st.Ino: c.root}
	n := 0
	return cgroup.Walk(int(dir.Fd()), func(e *cgroup.Entry) error {
		c.paths[e.ID] = c.root + e.Path
		if n++; n%looks == 0 {
			return p.breathe(ctx)
		}
		return nil
	})
}

// outside reports whether the programs do not see the sockets of a cgroup. 0 is
// one that the kernel did not tell. One that was removed counts as outside where
// its socket lives on.
func (c *cgroups) outside(id uint64) bool { return !c.whole && id != 0 && c.paths[id] == "" }

// Outside reports whether the programs of the cgroup at a path see nothing of what is
// made in the cgroup with this id (conn.Snapshot.Cgroup). It walks over the hierarchy
// below the path. Of 0 that is not known, and false.
func Outside(ctx context.Context, path string, id uint64) (bool, error) {
	c := cgroups{root: path}
	if err := c.read(ctx, nil); err != nil {
		return false, err
	}
	return c.outside(id), nil
}
