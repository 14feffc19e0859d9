// SPDX-License-Identifier: Apache-2.0

package cases

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
)

// ids are the BPF programs, maps and links that agents of the test had, by the
// kernel's ids: others on the machine may have such, too.
type ids struct {
	programs map[ebpf.ProgramID]bool
	maps     map[ebpf.MapID]bool
	links    map[link.ID]bool
}

func newIDs() *ids {
	return &ids{programs: make(map[ebpf.ProgramID]bool), maps: make(map[ebpf.MapID]bool), links: make(map[link.ID]bool)}
}

// of adds what an agent that runs has open.
func (s *ids) of(t *testing.T, a *agent) {
	t.Helper()
	infos, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", a.cmd.Process.Pid))
	if err != nil || len(infos) == 0 {
		t.Fatalf("no descriptors of the agent: %v", err)
	}
	for _, path := range infos {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // closed meanwhile
		}
		for l := range strings.Lines(string(b)) {
			var id uint32
			name, value, _ := strings.Cut(l, ":")
			if n, _ := fmt.Sscan(value, &id); n != 1 {
				continue
			}
			switch name {
			case "prog_id":
				s.programs[ebpf.ProgramID(id)] = true
			case "map_id":
				s.maps[ebpf.MapID(id)] = true
			case "link_id":
				s.links[link.ID(id)] = true
			}
		}
	}
}

// pinned adds what the pins lead to.
func (s *ids) pinned(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if m, err := ebpf.LoadPinnedMap(path, nil); err == nil {
			s.addMap(t, m)
			continue
		}
		l, err := link.LoadPinnedLink(path, nil)
		if err != nil {
			t.Fatal(err)
		}
		info, err := l.Info()
		if err != nil {
			t.Fatal(err)
		}
		s.links[info.ID], s.programs[info.Program] = true, true
		l.Close()
	}
	if len(s.links) < 2 || len(s.programs) < 2 || len(s.maps) < 7 {
		t.Fatalf("the test sees only %+v", s)
	}
}

// addMap adds a map and the one in it, and closes it.
func (s *ids) addMap(t *testing.T, m *ebpf.Map) {
	t.Helper()
	defer m.Close()
	info, err := m.Info()
	if err != nil {
		t.Fatal(err)
	}
	if id, ok := info.ID(); ok {
		s.maps[id] = true
	}
	if inner := uint32(0); info.Type == ebpf.ArrayOfMaps && m.Lookup(uint32(0), &inner) == nil {
		s.maps[ebpf.MapID(inner)] = true
	}
}

// left lists what of them the kernel still has.
func (s *ids) left() (out []string) {
	for id := range s.links {
		if l, err := link.NewFromID(id); err == nil {
			l.Close()
			out = append(out, fmt.Sprint("link ", id))
		}
	}
	for id := range s.programs {
		if p, err := ebpf.NewProgramFromID(id); err == nil {
			out = append(out, fmt.Sprint("program ", id, p))
			p.Close()
		}
	}
	for id := range s.maps {
		if m, err := ebpf.NewMapFromID(id); err == nil {
			out = append(out, fmt.Sprint("map ", id, m))
			m.Close()
		}
	}
	return out
}

// wantNothing: no program, map or link of any agent is left (the kernel frees them
// a moment after their last user), none is attached, and nothing is pinned.
func (k *killer) wantNothing(t *testing.T) {
	t.Helper()
	var left []string
	t.Cleanup(func() {
		if len(left) > 0 {
			t.Logf("left in the kernel: %q", left)
		}
	})
	labtest.Eventually(t, late, func() bool {
		left = k.seen.left()
		return len(left) == 0
	}, "the end of programs, maps and links")
	dir, err := os.Open(k.cgroup.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	for _, typ := range []ebpf.AttachType{ebpf.AttachCGroupSetsockopt, ebpf.AttachCGroupSockOps} {
		res, err := link.QueryPrograms(link.QueryOptions{Target: int(dir.Fd()), Attach: typ})
		if err != nil || len(res.Programs) != 0 {
			t.Errorf("%d programs are attached as %v, %v", len(res.Programs), typ, err)
		}
	}
	if _, err := os.Lstat(k.bpffs); !os.IsNotExist(err) {
		t.Errorf("the directory of pins: %v", err)
	}
}
