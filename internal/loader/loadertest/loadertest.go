// SPDX-License-Identifier: Apache-2.0

// Package loadertest puts the real programs to work for tests: on a lab and in
// a cgroup of the test's own. It needs root and what package loader needs.
package loadertest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/policy"
)

// Fast is a policy with short bounds for the servers of a lab: 3 s idle and in
// flight, a probe window of 1.5 s.
const Fast = `version: 1
defaults:
  user_timeout: 3s
  keepalive: {idle: 1s, interval: 1s, count: 2}
  probe: {window: 1500ms, attempts: 3}
peers:
  - name: server
    cidrs: [10.91.2.0/24, "fd91:0:0:2::/64"]
`

// Types are those of the kernel, read once for all tests.
func Types() *loader.Types { return &types }

var types loader.Types

// Bed is a lab whose every socket is in a cgroup with the programs attached.
type Bed struct {
	*lab.Lab
	Cgroup   *lab.Cgroup
	Programs *loader.Programs
}

// New builds a bed with a policy in force. The test's process is in the cgroup
// until the test ends: no other test of the package may run meanwhile.
func New(t testing.TB, policyText string) *Bed {
	t.Helper()
	return NewOn(t, lab.Options{Servers: 2}, policyText)
}

// NewOn is New on another lab.
func NewOn(t testing.TB, opts lab.Options, policyText string) *Bed {
	t.Helper()
	b := &Bed{Lab: labtest.New(t, opts), Cgroup: labtest.Cgroup(t)}
	b.Programs = Load(t)
	b.SetPolicy(t, policyText)
	if err := b.Programs.Attach(b.Cgroup.Path); err != nil {
		t.Fatal(err)
	}
	labtest.Enter(t, b.Cgroup)
	return b
}

// Load loads the programs until the test ends.
func Load(t testing.TB) *loader.Programs {
	t.Helper()
	labtest.Root(t)
	p, err := loader.Load(Types())
	if missing := new(loader.MissingError); errors.As(err, &missing) {
		labtest.SkipOrFail(t, missing.Error())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("close programs: %v", err)
		}
	})
	return p
}

// Need ends the test where the kernel lacks a feature, as labtest.Need does.
func Need(t testing.TB, p *loader.Programs, f kernel.Feature) {
	t.Helper()
	labtest.Need(t, f, p.Lacks(f))
}

// Has reports whether the kernel has a feature, as labtest.Has does.
func Has(t testing.TB, p *loader.Programs, f kernel.Feature) bool {
	t.Helper()
	return labtest.Has(t, f, p.Lacks(f))
}

// SetPolicy puts another policy in force.
func (b *Bed) SetPolicy(t testing.TB, text string) {
	t.Helper()
	pol, err := policy.Parse("test.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Programs.SetPolicy(pol); err != nil {
		t.Fatal(err)
	}
}

// CountFault sets the counter of a fault that is pinned in a directory.
func CountFault(t testing.TB, dir string, f loader.Fault, n uint64) {
	t.Helper()
	m, err := ebpf.LoadPinnedMap(filepath.Join(dir, "sh_faults"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	values := make([]uint64, ebpf.MustPossibleCPU())
	values[0] = n
	if err := m.Put(uint32(f), values); err != nil {
		t.Fatal(err)
	}
}

// Unlink takes the one program of a kind off a cgroup by force, as an administrator
// with bpftool can.
func Unlink(t testing.TB, cgroup *lab.Cgroup, kind ebpf.AttachType) {
	t.Helper()
	there, err := link.QueryPrograms(link.QueryOptions{Target: cgroup.FD(), Attach: kind})
	if err != nil {
		t.Fatal(err)
	}
	if len(there.Programs) != 1 {
		t.Fatalf("%d programs, want one", len(there.Programs))
	}
	it := new(link.Iterator)
	defer it.Close()
	for it.Next() {
		info, err := it.Link.Info()
		if err != nil || info.Program != there.Programs[0].ID || info.Type != link.CgroupType {
			continue
		}
		if err := it.Link.Detach(); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatalf("found no link (%v)", it.Err())
}

// BPFFS makes a bpffs that is mounted nowhere and returns the path of a directory
// there for pins, which is not made yet. Other processes may use the path until
// the test ends; then the file system is gone with whatever is pinned in it.
func BPFFS(t testing.TB) string {
	t.Helper()
	labtest.Root(t)
	fs, err := unix.Fsopen("bpf", unix.FSOPEN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		t.Fatal(err)
	}
	mount, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(mount) })
	return fmt.Sprintf("/proc/%d/fd/%d/sockhealth", os.Getpid(), mount)
}
