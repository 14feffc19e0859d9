// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// DeniedError says what may not be looked at while namespaces are searched. It wraps
// ErrPermission.
type DeniedError struct {
	// Number counts the namespaces that could not be opened, or the processes and
	// names where it is not known which they lead to.
	Number int
	// Named are the first of them: "process 812 (nginx)", "/run/netns/blue".
	Named []string
}

// deniedNamed is how many are named.
const deniedNamed = 3

// Refusal is one thing that may not be looked at.
type Refusal struct {
	path string // PROC/PID/ns/net stands for a process
	comm string // what it was called when it refused; "": hidden
}

// Refused notes that what this path leads to may not be looked at, where
// PROC/PID/ns/net stands for a process. Its name is asked for now: the number may
// be another's later.
func Refused(path string) Refusal {
	r := Refusal{path: path}
	if dir, ok := r.process(); ok {
		if comm, err := os.ReadFile(filepath.Join(dir, "comm")); err == nil {
			r.comm = strings.TrimSuffix(string(comm), "\n")
		}
	}
	return r
}

// Refusals are those of one search, each path noted when it refuses.
type Refusals []Refusal

// Add notes a path, as Refused does; those that no error names are not asked for
// their names.
func (l *Refusals) Add(path string) {
	if len(*l) < deniedNamed {
		*l = append(*l, Refused(path))
	} else {
		*l = append(*l, Refusal{path: path})
	}
}

// Denied makes the error of these. There is none without any.
func Denied(list []Refusal) error {
	if len(list) == 0 {
		return nil
	}
	e := &DeniedError{Number: len(list)}
	for i := range list[:min(len(list), deniedNamed)] {
		e.Named = append(e.Named, list[i].String())
	}
	return e
}

// process is the directory of the process that the path stands for.
func (r *Refusal) process() (dir string, ok bool) { return strings.CutSuffix(r.path, "/ns/net") }

// String names the process, with what it was called as far as that may be seen, and
// whether it has ended since; or the path.
func (r *Refusal) String() string {
	dir, ok := r.process()
	if !ok {
		return r.path
	}
	name := r.comm
	if name == "" {
		name = "hidden"
	} else if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		name += ", gone"
	}
	return fmt.Sprintf("process %s (%s)", filepath.Base(dir), name)
}

// Error names some, and says how many there are besides.
func (e *DeniedError) Error() string {
	more := ""
	if n := e.Number - len(e.Named); n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	return fmt.Sprintf("%v to look at %s%s", ErrPermission, strings.Join(e.Named, ", "), more)
}

// Unwrap returns ErrPermission.
func (e *DeniedError) Unwrap() error { return ErrPermission }
