// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// found is what earlier agents left. The links are the truth: what runs is their
// programs, and what counts are the maps of these. A pin of a map says something
// only where no link does, so that every way in which a start can be cut short
// leaves one thing to go by.
type found struct {
	links map[string]link.Link // by the names of attachments; those that are there
	// maps by their names in the kernel: of the links' programs, that which is
	// updated first before the other, else what is pinned.
	maps     map[string][]*ebpf.Map
	programs []ebpf.ProgramID // of the links, and of their drafts
	ended    bool             // the tracepoint is pinned
	endedBy  ebpf.ProgramID   // its program; 0: unknown
	// layout is that of the build that pinned; 0: unknown.
	layout uint32
}

// find opens what is pinned in the directory. After an error nothing is open.
func (p *Pins) find() (_ *found, err error) {
	f := &found{links: make(map[string]link.Link), maps: make(map[string][]*ebpf.Map)}
	defer func() {
		if err != nil {
			f.close()
		}
	}()
	for _, name := range attachments {
		if err := f.addLink(name, p.path(name)); err != nil {
			return nil, fmt.Errorf("open pinned link %s: %w", name, err)
		}
	}
	names, err := p.names()
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if name == endedName {
			f.ended, f.endedBy = true, programOf(p.path(name))
		}
		if strings.HasPrefix(name, draft) {
			f.addDraft(p.path(name))
		}
		if strings.HasPrefix(name, mapPrefix) && len(f.maps[name]) == 0 {
			if m, err := ebpf.LoadPinnedMap(p.path(name), nil); err == nil { // else it is swept
				f.maps[name] = append(f.maps[name], m)
			}
		}
	}
	if m := f.maps[stateMap]; len(m) > 0 {
		f.layout = layoutOf(m[0])
	}
	return f, nil
}

// addLink opens one link and the maps of its program.
func (f *found) addLink(name, path string) error {
	l, err := link.LoadPinnedLink(path, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	info, err := l.Info()
	if err == nil && info.Cgroup() == nil {
		err = fmt.Errorf("it is a link of type %d, no cgroup's [remove it]", info.Type)
	}
	if err != nil {
		return errors.Join(err, l.Close())
	}
	f.links[name] = l
	f.programs = append(f.programs, info.Program)
	return f.addMaps(info.Program)
}

// addDraft notes the program of a link whose pin was about to take its place: it
// is attached until the draft is swept, which comes when all others are in place.
func (f *found) addDraft(path string) {
	l, err := link.LoadPinnedLink(path, nil)
	if err != nil {
		return // a map
	}
	defer l.Close()
	if info, err := l.Info(); err == nil {
		f.programs = append(f.programs, info.Program)
	}
}

// programOf returns the program of a pinned link, 0 where it cannot be told.
func programOf(path string) ebpf.ProgramID {
	l, err := link.LoadPinnedLink(path, nil)
	if err != nil {
		return 0
	}
	defer l.Close()
	info, err := l.Info()
	if err != nil {
		return 0
	}
	return info.Program
}

// addMaps opens the maps of a program that it has not got.
func (f *found) addMaps(id ebpf.ProgramID) error {
	prog, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return fmt.Errorf("open its program: %w", err)
	}
	defer prog.Close()
	info, err := prog.Info()
	if err != nil {
		return fmt.Errorf("ask for its program: %w", err)
	}
	ids, _ := info.MapIDs()
	for _, id := range ids {
		if err := f.addMap(id); err != nil {
			return fmt.Errorf("open its map: %w", err)
		}
	}
	return nil
}

func (f *found) addMap(id ebpf.MapID) error {
	m, err := ebpf.NewMapFromID(id)
	if err != nil {
		return err
	}
	info, err := m.Info()
	if err != nil {
		return errors.Join(err, m.Close())
	}
	same := func(have *ebpf.Map) bool { return sameMap(have, m) }
	if !strings.HasPrefix(info.Name, mapPrefix) || slices.ContainsFunc(f.maps[info.Name], same) {
		return m.Close() // such as the constants of one program
	}
	f.maps[info.Name] = append(f.maps[info.Name], m)
	return nil
}

// mapPrefix begins the names of the maps that outlive a build.
const mapPrefix = "sh_"

// usable returns the map of that name that a program made for spec can go on
// with, nil where there is none.
func (f *found) usable(name string, spec *ebpf.MapSpec) *ebpf.Map {
	if f == nil {
		return nil
	}
	for _, m := range f.maps[name] {
		if spec.Compatible(m) != nil {
			continue
		}
		// What is in these two has no size that would tell.
		if inner := spec.InnerMap != nil; (inner || spec.Type == ebpf.RingBuf) && f.layout != layout ||
			inner && !innerCompatible(m, spec.InnerMap) {
			continue
		}
		return m
	}
	return nil
}

// innerCompatible reports whether a map of maps takes maps made for spec: it holds
// one that is like them.
func innerCompatible(m *ebpf.Map, spec *ebpf.MapSpec) bool {
	var id uint32
	if m.Lookup(uint32(0), &id) != nil {
		return false
	}
	inner, err := ebpf.NewMapFromID(ebpf.MapID(id))
	if err != nil {
		return false
	}
	defer inner.Close()
	return spec.Compatible(inner) == nil
}

// others returns the maps of that name that are not m: those of a build whose
// layout was another.
func (f *found) others(name string, m *ebpf.Map) []*ebpf.Map {
	if f == nil {
		return nil
	}
	var out []*ebpf.Map
	for _, have := range f.maps[name] {
		if !sameMap(have, m) {
			out = append(out, have)
		}
	}
	return out
}

// detach takes what is left of the links off their cgroups.
func (f *found) detach() error {
	var errs []error
	for name, l := range f.links {
		if err := l.Detach(); err != nil {
			errs = append(errs, fmt.Errorf("detach %s from its old cgroup: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// close lets go of everything that nobody has taken out.
func (f *found) close() {
	if f == nil {
		return
	}
	for _, l := range f.links {
		_ = l.Close()
	}
	for _, maps := range f.maps {
		for _, m := range maps {
			_ = m.Close()
		}
	}
	f.links, f.maps = nil, nil
}

// sameMap reports whether both are one map of the kernel's.
func sameMap(a, b *ebpf.Map) bool {
	idA, okA := mapID(a)
	idB, okB := mapID(b)
	return okA && okB && idA == idB
}

func mapID(m *ebpf.Map) (ebpf.MapID, bool) {
	info, err := m.Info()
	if err != nil {
		return 0, false
	}
	return info.ID()
}
