// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
)

// footprint is what the pins keep in the kernel, by the kernel's ids.
type footprint struct {
	links    []link.ID
	programs []ebpf.ProgramID
	maps     []ebpf.MapID
}

// footprint lists everything that the pins lead to.
func (b *pinBed) footprint(t *testing.T) (f footprint) {
	t.Helper()
	add := func(m *ebpf.Map, err error) {
		if err != nil {
			t.Fatal(err)
		}
		info, err := m.Info()
		if err != nil {
			t.Fatal(err)
		}
		if id, ok := info.ID(); ok && strings.HasPrefix(info.Name, "sh_") { // not what is mapped into this process
			f.maps = append(f.maps, id)
		}
		if inner := uint32(0); info.Type == ebpf.ArrayOfMaps && m.Lookup(uint32(0), &inner) == nil {
			f.maps = append(f.maps, ebpf.MapID(inner))
		}
		m.Close()
	}
	for _, id := range b.linkIDs(t) {
		f.links = append(f.links, id)
		l, err := link.NewFromID(id)
		if err != nil {
			t.Fatal(err)
		}
		info, err := l.Info()
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
		f.programs = append(f.programs, info.Program)
		p, err := ebpf.NewProgramFromID(info.Program)
		if err != nil {
			t.Fatal(err)
		}
		pi, err := p.Info()
		if err != nil {
			t.Fatal(err)
		}
		p.Close()
		ids, _ := pi.MapIDs()
		for _, id := range ids {
			add(ebpf.NewMapFromID(id))
		}
	}
	for _, name := range b.pinned(t) {
		if strings.HasPrefix(name, "sh_") {
			add(ebpf.LoadPinnedMap(filepath.Join(b.dir, name), nil))
		}
	}
	return f
}

// left is what of it is still there.
func (f *footprint) left() (out []string) {
	for _, id := range f.links {
		if l, err := link.NewFromID(id); err == nil {
			l.Close()
			out = append(out, fmt.Sprint("link ", id))
		}
	}
	for _, id := range f.programs {
		if p, err := ebpf.NewProgramFromID(id); err == nil {
			out = append(out, fmt.Sprint("program ", id, p))
			p.Close()
		}
	}
	for _, id := range f.maps {
		if m, err := ebpf.NewMapFromID(id); err == nil {
			out = append(out, fmt.Sprint("map ", id, m))
			m.Close()
		}
	}
	return out
}

// wantNothing waits until nothing of a footprint is left (the kernel frees a map a
// moment after its last user), and demands that nothing is attached or pinned.
func (b *pinBed) wantNothing(t *testing.T, f footprint) {
	t.Helper()
	if len(f.links) != 2 || len(f.programs) != 2 || len(f.maps) < 8 {
		t.Fatalf("the test sees only %+v", f)
	}
	var left []string
	for end := time.Now().Add(late); ; time.Sleep(20 * time.Millisecond) {
		if left = f.left(); len(left) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("left in the kernel: %q", left)
		}
	}
	wantNoneAttached(t, b.cgroup.Path)
	if _, err := os.Lstat(b.dir); !os.IsNotExist(err) {
		t.Errorf("the directory: %v", err)
	}
}

// wantNoneAttached: no program of the kinds that we attach is at the cgroup.
func wantNoneAttached(t *testing.T, cgroup string) {
	t.Helper()
	for _, typ := range []ebpf.AttachType{ebpf.AttachCGroupSetsockopt, ebpf.AttachCGroupSockOps} {
		res, err := link.QueryPrograms(link.QueryOptions{Target: dirFD(t, cgroup), Attach: typ})
		if err != nil || len(res.Programs) != 0 {
			t.Errorf("%d programs of type %v left behind, %v", len(res.Programs), typ, err)
		}
	}
}

// slower is another policy for the connections of Fast.
var slower = strings.Replace(loadertest.Fast, "user_timeout: ", "user_timeout: 1", 1)

// TestAbandon: a first start that fails leaves nothing, a later one what was there, the
// policy included. When the pins are removed nothing of ours is left, and connections are nobody's.
func TestAbandon(t *testing.T) {
	b := newPinBed(t)
	a := b.start(t, loadPinned, loadertest.Fast)
	f := b.footprint(t)
	if err := a.Abandon(); err != nil {
		t.Fatal(err)
	}
	a.mustStop(t)
	b.wantNothing(t, f)
	a = b.start(t, loadPinned, loadertest.Fast)
	revision := a.InForce().Policy.Revision
	a.mustStop(t)
	for range 2 {
		a = b.start(t, loadPinned, slower)
		if got := a.Takeover().Revision; got != revision {
			t.Errorf("took over policy %s, %s was in force", got, revision)
		}
		if err := a.Abandon(); err != nil {
			t.Fatal(err)
		}
		a.mustStop(t)
		wantOptions(t, "after a later start that failed", b.dial(t, false), fast)
	}
	a = b.start(t, loadPinned, slower)
	if err := errors.Join(a.Settle(), a.Abandon()); err != nil {
		t.Fatal(err)
	}
	a.mustStop(t)
	if got := labtest.Options(t, b.dial(t, false)); got == fast {
		t.Error("the policy of a start that succeeded is not in force")
	}
	if f = b.footprint(t); len(f.left()) < 12 {
		t.Fatalf("the test sees only %q", f.left())
	}
	b.leave(t)
	b.wantNothing(t, f)
	wantOptions(t, "afterwards", b.dial(t, false), unset)
}
