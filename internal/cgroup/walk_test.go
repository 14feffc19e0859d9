// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/lab/labtest"
)

// seen walks over what is below a path.
func seen(t *testing.T, path string) map[uint64]string {
	t.Helper()
	dir, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	out := make(map[uint64]string)
	if err := Walk(int(dir.Fd()), func(e *Entry) error {
		fd, err := e.Open()
		if err != nil {
			t.Errorf("%s: %v", e.Path, err)
			return nil
		}
		out[e.ID] = e.Path
		return unix.Close(fd)
	}); err != nil {
		t.Fatal(err)
	}
	return out
}

// A walk sees every cgroup with its id, whatever the length of its path.
func TestWalk(t *testing.T) {
	labtest.Root(t)
	g := labtest.Cgroup(t)
	want := make(map[uint64]string)
	for _, path := range []string{"/a", "/a/b", "/a/c", "/d"} {
		if err := os.Mkdir(g.Path+path, 0o755); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(g.Path + path)
		if err != nil {
			t.Fatal(err)
		}
		want[info.Sys().(*syscall.Stat_t).Ino] = path
	}
	deep := labtest.DeepCgroups(t, filepath.Join(g.Path, "d"))
	path := "/d"
	for _, id := range deep {
		path += "/" + strings.Repeat("d", 255)
		want[id] = path
	}
	got := seen(t, g.Path)
	for id, path := range want {
		if got[id] != path {
			t.Errorf("%d: got %q, want %q", id, got[id], path)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d were seen, want %d", len(got), len(want))
	}
}

// A walk ends somewhere, and where it is told to.
func TestWalkEnds(t *testing.T) {
	labtest.Root(t)
	g := labtest.Cgroup(t)
	deep := g.Path + strings.Repeat("/x", depth+2)
	if err := os.MkdirAll(deep, 0o755); err != nil {
		t.Fatal(err)
	}
	if got := len(seen(t, g.Path)); got != depth {
		t.Errorf("%d levels were seen, want %d", got, depth)
	}
	dir, err := os.Open(g.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	enough, n := errors.New("enough"), 0
	err = Walk(int(dir.Fd()), func(*Entry) error {
		if n++; n == 3 {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) || n != 3 {
		t.Errorf("%d were seen, %v", n, err)
	}
}
