// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/cgroup"
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
func (p *Programs) awaitAlone(path string) error {
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		strange, err := p.strangers(path)
		if err != nil {
			return fmt.Errorf("look around cgroup %q: %w", path, err)
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
				path, ErrAttached, strings.Join(where, ", "))
		}
	}
}

// strangers returns the programs of ours that others have attached to a cgroup, to
// those above and to those below. A nested agent looks at its own alone.
func (p *Programs) strangers(path string) ([]stranger, error) {
	if p.nested {
		return p.strangersAt(path, nil)
	}
	dirs, err := upwards(path)
	if err != nil {
		return nil, err
	}
	var out []stranger
	for _, dir := range dirs {
		if out, err = p.strangersAt(dir, out); err != nil {
			return nil, err
		}
	}
	below, err := p.strangersBelow(dirs[0])
	return append(out, below...), err
}

// strangersBelow returns those attached below a cgroup. Whoever may make cgroups there
// can make some that are deeper than the walk goes, and keeps nobody from starting.
func (p *Programs) strangersBelow(path string) (out []stranger, err error) {
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	err = cgroup.Walk(int(dir.Fd()), func(e *cgroup.Entry) error {
		fd, err := e.Open()
		if err != nil {
			return nil
		}
		defer unix.Close(fd)
		more, err := p.strangersIn(fd, path+e.Path, out)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // removed meanwhile
		}
		out = more
		return err
	})
	return out, err
}

// strangersAt appends those at one cgroup.
func (p *Programs) strangersAt(path string, out []stranger) ([]stranger, error) {
	dir, err := os.Open(path)
	if err != nil {
		return out, err
	}
	defer dir.Close()
	return p.strangersIn(int(dir.Fd()), path, out)
}

// strangersIn appends those at one cgroup that is open.
func (p *Programs) strangersIn(fd int, path string, out []stranger) ([]stranger, error) {
	for _, a := range at(nil, nil) {
		ids, _, err := attachedTo(fd, a.typ, 0)
		if err != nil {
			return out, err
		}
		for _, id := range ids {
			if p.found != nil && slices.Contains(p.found.programs, id) {
				continue
			}
			if name, ok := programName(id); ok && (ourName(name) || p.nested && isNested(name)) {
				out = append(out, stranger{id, path})
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

// foreignName returns the name of a program that is there and somebody else's.
func foreignName(id ebpf.ProgramID) (name string, foreign bool) {
	name, ok := programName(id)
	return name, ok && !ourName(name) && !isNested(name)
}
