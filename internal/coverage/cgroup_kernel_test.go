// SPDX-License-Identifier: Apache-2.0

package coverage

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/sockhealth/sockhealth/internal/lab/labtest"
)

// Cgroups are known whatever the length of their paths; and read once.
func TestCgroups(t *testing.T) {
	labtest.Root(t)
	g := labtest.Cgroup(t)
	deep := labtest.DeepCgroups(t, g.Path)
	other := labtest.Cgroup(t)
	c := &cgroups{root: g.Path}
	called, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.read(called, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("called off: %v", err)
	}
	if err := c.read(t.Context(), new(pace)); err != nil {
		t.Fatal(err)
	}
	last := deep[len(deep)-1]
	if c.outside(last) || c.outside(0) || !c.outside(inode(t, other.Path)) {
		t.Errorf("got %+v", c)
	}
	late := filepath.Join(g.Path, "late")
	if err := os.Mkdir(late, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := c.read(t.Context(), new(pace)); err != nil || !c.outside(inode(t, late)) {
		t.Errorf("read again: %v", err)
	}
	gone := &cgroups{root: filepath.Join(g.Path, "gone")}
	for range 2 {
		if err := gone.read(t.Context(), nil); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a cgroup that is not there: %v", err)
		}
	}
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Ino
}
