// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"

	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
)

// TestHalfMade: whatever a start that was cut short, or somebody's hand, has left,
// one start makes it whole, and nothing of what can be kept is lost.
func TestHalfMade(t *testing.T) {
	b := newPinBed(t)
	var a agent // what one case made whole the next one damages
	t.Cleanup(func() { _ = a.stop() })
	start := func(t *testing.T) {
		var err error
		if a, err = startIn(b.dir, b.cgroup.Path, loadPinned, loadertest.Fast); err != nil {
			t.Fatal(err)
		}
	}
	for name, tc := range map[string]struct {
		damage  func(t *testing.T)
		unbound bool // while no agent runs
		short   bool // also where tests are to be short
	}{
		"whole":                    {damage: func(*testing.T) {}},
		"one link":                 {damage: b.cut("sockops"), unbound: true, short: true},
		"the other link":           {damage: b.cut("setsockopt")},
		"no link":                  {damage: b.cut("setsockopt", "sockops"), unbound: true},
		"no maps":                  {damage: b.cut(whole[1:8]...), short: true},
		"no records":               {damage: b.cut("sh_records")},
		"no names":                 {damage: b.cut("sh_names", "sh_state")},
		"another map's name":       {damage: b.strange("sh_records")},
		"another version's pin":    {damage: b.strange("sh_future"), short: true},
		"a draft of a map":         {damage: b.strange("new_sh_stats")},
		"nothing of it":            {damage: b.cut(whole...), unbound: true},
		"a directory that strayed": {damage: func(t *testing.T) { _ = os.Mkdir(filepath.Join(b.dir, "x"), 0o700) }},
	} {
		if testing.Short() && !tc.short {
			continue
		}
		t.Run(name, func(t *testing.T) {
			if a.pins == nil {
				start(t)
			}
			first := b.dial(t, false)
			rec, _ := b.record(t, a.Programs, first)
			opened := mustCounters(t, a.Programs, "server").OpenedOutbound
			a.mustStop(t)
			tc.damage(t)
			b.wantWithoutAgent(t, tc.unbound)
			start(t)
			wantOptions(t, "after the start", b.dial(t, false), fast)
			if d := cmp.Diff(whole, b.pinned(t)); d != "" {
				t.Errorf("pins (-want +got):\n%s", d)
			}
			if name == "nothing of it" {
				return
			}
			if got, ok := b.record(t, a.Programs, first); !ok || got != rec {
				t.Errorf("record %+v, %v, want %+v", got, ok, rec)
			}
			if c := mustCounters(t, a.Programs, "server"); c.OpenedOutbound != opened+2 && !tc.unbound {
				t.Errorf("%d connections counted, want %d", c.OpenedOutbound, opened+2)
			}
			wantNoFaults(t, a.Programs)
		})
	}
}

// cut removes pins.
func (b *pinBed) cut(names ...string) func(t *testing.T) {
	return func(t *testing.T) {
		for _, name := range names {
			if err := os.Remove(filepath.Join(b.dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// strange puts somebody else's map in a pin's place.
func (b *pinBed) strange(path string) func(t *testing.T) {
	return func(t *testing.T) {
		m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 4, MaxEntries: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		_ = os.Remove(filepath.Join(b.dir, path))
		if err := m.Pin(filepath.Join(b.dir, path)); err != nil {
			t.Fatal(err)
		}
	}
}

// wantWithoutAgent: connections are bounded while no agent runs, or nothing bounds them.
func (b *pinBed) wantWithoutAgent(t *testing.T, unbound bool) {
	t.Helper()
	if unbound { // the kernel lets go of a link a moment after its pin
		labtest.Eventually(t, late, func() bool {
			return labtest.Options(t, b.dial(t, false)) == unset
		}, "a connection that nothing bounds")
		return
	}
	wantOptions(t, "without an agent", b.dial(t, false), fast)
}
