// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// v1Mounts are where hierarchies of cgroup v1 are mounted. runc puts a container's
// cgroup below each, whatever the mount's root.
func v1Mounts(t *testing.T) (points []string) {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		own, kind, _ := strings.Cut(line, " - ")
		if strings.HasPrefix(kind, "cgroup ") {
			points = append(points, strings.Fields(own)[4])
		}
	}
	return points
}

// sweepV1 removes cgroups of v1 that test processes left which were killed, as
// lab.NewCgroup does with those of v2. What resists stays.
func sweepV1(t *testing.T, points []string) {
	t.Helper()
	for _, point := range points {
		left, err := filepath.Glob(filepath.Join(point, "sockhealth-test-*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range left {
			var pid, n int
			_, err := fmt.Sscanf(filepath.Base(path), "sockhealth-test-%d-%d", &pid, &n)
			if err == nil && errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
				removeCgroups(path)
			}
		}
	}
}

// removeCgroups removes a cgroup and those below it, where nobody is in them.
func removeCgroups(top string) {
	var all []string
	_ = filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			all = append(all, path)
		}
		return nil
	})
	for _, path := range slices.Backward(all) {
		_ = unix.Rmdir(path)
	}
}

// TestSweepV1: of what looks alike, only the cgroups of dead processes go.
func TestSweepV1(t *testing.T) {
	point := t.TempDir()                                         // folders are removed as cgroups are
	gone := filepath.Join(point, "sockhealth-test-1073741824-0") // beyond any process id
	own := filepath.Join(point, fmt.Sprintf("sockhealth-test-%d-0", os.Getpid()))
	other := filepath.Join(point, "sockhealth-testing")
	for _, path := range []string{filepath.Join(gone, "kubepods", "pod"), own, other} {
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	sweepV1(t, []string{point})
	if _, err := os.Stat(gone); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("that of a dead process is left: %v", err)
	}
	for _, path := range []string{own, other} {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
}
