// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
)

// below makes a cgroup inside another, two levels down.
func below(t *testing.T, cgroup string) string {
	t.Helper()
	path := filepath.Join(cgroup, "between", "below")
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestNestedAgents: an agent above or below another is told who that is, wherever it
// pins; one beside it is none of its business, nor is one that is nested on purpose.
func TestNestedAgents(t *testing.T) {
	labtest.Root(t)
	above := labtest.Cgroup(t).Path
	under, beside := below(t, above), labtest.Cgroup(t).Path
	for _, two := range [][2]string{{under, above}, {above, under}} {
		holder := child(t, "hold", loadertest.BPFFS(t), two[0])
		holder.await(t, "held")
		_, err := loader.LockCgroup(two[1], false)
		wantHolder(t, err, holder.Process.Pid)
		lock, err := loader.LockCgroup(beside, false)
		if err != nil || len(lock.Strangers) != 0 {
			t.Fatalf("beside it: %+v, %v", lock, err)
		}
		if common := filepath.Dir(beside); !slices.Contains(lock.Beside, loader.Stranger{PID: holder.Process.Pid, Dir: common}) {
			t.Errorf("beside it: %+v, want %d, both below %s", lock.Beside, holder.Process.Pid, common)
		}
		lock.Close()
		if two[0] == above {
			nested, err := loader.LockCgroup(under, true)
			if err != nil || len(nested.Strangers) != 0 {
				t.Fatalf("nested: %+v, %v", nested, err)
			}
			defer nested.Close()
		}
		holder.kill()
	}
	// What is nested is in nobody's way.
	again, err := loader.LockCgroup(above, false)
	if err != nil || len(again.Strangers) != 0 {
		t.Fatalf("above one that is nested: %+v, %v", again, err)
	}
	again.Close()
}

// TestNestedPrograms: so are programs whose agent does not run, and which another
// directory pins.
func TestNestedPrograms(t *testing.T) {
	b := newPinBed(t)
	under := below(t, b.cgroup.Path)
	orders := [][2]string{{b.cgroup.Path, under}, {under, b.cgroup.Path}}
	if testing.Short() {
		orders = orders[:1]
	}
	second := loadertest.Load(t)
	for _, two := range orders {
		a, err := startIn(b.dir, two[0], loadPinned, loadertest.Fast)
		if err != nil {
			t.Fatal(err)
		}
		if err := a.stop(); err != nil {
			t.Fatal(err)
		}
		err = second.Attach(two[1])
		if !errors.Is(err, loader.ErrAttached) || !strings.Contains(err.Error(), two[0]) {
			t.Errorf("%v, want ErrAttached at %s", err, two[0])
		}
		nested, err := loader.LoadNested(loadertest.Types())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = nested.Close() })
		if err := nested.Attach(two[1]); err != nil {
			t.Errorf("nested: %v", err)
		}
		// The other's next start, also at the other cgroup, is not disturbed.
		a, err = startIn(b.dir, two[1], loadPinned, loadertest.Fast)
		if err != nil {
			t.Errorf("moved: %v", err)
		}
		a.stop()
		nested.Close()
		b.leave(t)
	}
}
