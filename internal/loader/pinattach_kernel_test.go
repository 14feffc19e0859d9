// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
)

// TestMove: the programs go to another cgroup, and are gone from the old one.
func TestMove(t *testing.T) {
	b := newPinBed(t)
	elsewhere := labtest.Cgroup(t)
	a, err := startIn(b.dir, elsewhere.Path, loadPinned, loadertest.Fast)
	if err != nil {
		t.Fatal(err)
	}
	a.mustStop(t)
	wantOptions(t, "outside the cgroup", b.dial(t, false), unset)
	a = b.start(t, loadPinned, loadertest.Fast)
	if !a.Takeover().Moved {
		t.Error("not said to have moved")
	}
	wantOptions(t, "inside", b.dial(t, false), fast)
	if d := cmp.Diff(whole, b.pinned(t)); d != "" {
		t.Errorf("pins (-want +got):\n%s", d)
	}
	wantNoneAttached(t, elsewhere.Path)
}

// TestCgroupRemoved: with its cgroup the programs went; the next start attaches
// them anew.
func TestCgroupRemoved(t *testing.T) {
	b := newPinBed(t)
	child := filepath.Join(b.cgroup.Path, "child")
	if err := os.Mkdir(child, 0o755); err != nil {
		t.Fatal(err)
	}
	a, err := startIn(b.dir, child, loadPinned, loadertest.Fast)
	if err != nil {
		t.Fatal(err)
	}
	a.mustStop(t)
	if err := os.Remove(child); err != nil {
		t.Fatal(err)
	}
	b.start(t, loadPinned, loadertest.Fast)
	wantOptions(t, "after the start", b.dial(t, false), fast)
}
