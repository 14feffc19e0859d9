// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"
)

// aloneLimit is how long a dying agent may take to let go of its links after it
// has let go of its locks.
const aloneLimit = 2 * time.Second

// nestedNames are the names of the programs of an agent that works below another on
// purpose: others take no notice of them.
var nestedNames = map[string]string{
	sockopsProgShSockops:    "sh_nested_sops",
	sockopsProgShSetsockopt: "sh_nested_sset",
}

// rename gives the programs of a nested agent names of their own.
func rename(spec *ebpf.CollectionSpec) {
	for name, other := range nestedNames {
		spec.Programs[name].Name = other
	}
}

// stranger is a program of ours that others have attached.
type stranger struct {
	id     ebpf.ProgramID
	cgroup string
}

// awaitAlone refuses a cgroup at which programs of ours are attached that are not
// those of our pins, or above which, or below: two sets would bound each connection
// by two policies.
func (p *Programs) awaitAlone(cgroup string) error {
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		strange, err := p.strangers(cgroup)
		if err != nil {
			return fmt.Errorf("look around cgroup %q: %w", cgroup, err)
		}
		if len(strange) == 0 {
			return nil
		}
		if time.Since(began) > aloneLimit {
			var where []string
			for _, s := range strange {
				where = append(where, fmt.Sprintf("id %d at %q", s.id, s.cgroup))
			}
			return fmt.Errorf("attach to cgroup %q: %w (%s) [sockhealth detach --bpffs DIR, of the directory where they are pinned]",
				cgroup, ErrAttached, strings.Join(where, ", "))
		}
	}
}

// strangers returns the programs of ours that others have attached to a cgroup, to
// those above and to those below. A nested agent looks at its own alone.
func (p *Programs) strangers(cgroup string) ([]stranger, error) {
	if p.nested {
		return p.strangersAt(cgroup, nil)
	}
	dirs, err := upwards(cgroup)
	if err != nil {
		return nil, err
	}
	var out []stranger
	for _, dir := range dirs[1:] {
		if out, err = p.strangersAt(dir, out); err != nil {
			return nil, err
		}
	}
	err = filepath.WalkDir(dirs[0], func(dir string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			out, err = p.strangersAt(dir, out)
		}
		if errors.Is(err, fs.ErrNotExist) && dir != dirs[0] {
			return nil // removed meanwhile
		}
		return err
	})
	return out, err
}

// strangersAt appends those at one cgroup.
func (p *Programs) strangersAt(dir string, out []stranger) ([]stranger, error) {
	for _, a := range at(nil, nil) {
		ids, _, err := attachedTo(dir, a.typ)
		if err != nil {
			return out, err
		}
		for _, id := range ids {
			if p.found != nil && slices.Contains(p.found.programs, id) {
				continue
			}
			if name, ok := programName(id); ok && (ourName(name) || p.nested && isNested(name)) {
				out = append(out, stranger{id, dir})
			}
		}
	}
	return out, nil
}

// ourName knows a program by its name.
func ourName(name string) bool {
	return name == sockopsProgShSockops || name == sockopsProgShSetsockopt
}

// isNested knows one of a nested agent.
func isNested(name string) bool {
	return name == nestedNames[sockopsProgShSockops] || name == nestedNames[sockopsProgShSetsockopt]
}
