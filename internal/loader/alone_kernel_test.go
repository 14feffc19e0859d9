// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
)

// TestAloneDeep: whoever may make cgroups below keeps no agent from starting by paths
// that are too long to be opened, nor hides an agent there beside them.
func TestAloneDeep(t *testing.T) {
	c := labtest.Cgroup(t)
	labtest.DeepCgroups(t, c.Path)
	under := below(t, c.Path)
	p := loadertest.Load(t)
	if err := p.Attach(c.Path); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if err := loadertest.Load(t).Attach(under); err != nil {
		t.Fatal(err)
	}
	if err := loadertest.Load(t).Attach(c.Path); !errors.Is(err, loader.ErrAttached) {
		t.Errorf("%v, want ErrAttached", err)
	}
}

// TestRemovedCgroup: one that is removed while it is open has no programs.
func TestRemovedCgroup(t *testing.T) {
	path := filepath.Join(labtest.Cgroup(t).Path, "gone")
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := loader.AttachedTo(int(dir.Fd()), ebpf.AttachCGroupSockOps); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v, want ErrNotExist", err)
	}
}
