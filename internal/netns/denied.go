// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"
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

// Denied makes the error of these paths, where PROC/PID/ns/net stands for a process.
// There is none without any.
func Denied(paths []string) error {
	if len(paths) == 0 {
		return nil
	}
	e := &DeniedError{Number: len(paths)}
	for _, path := range paths[:min(len(paths), deniedNamed)] {
		e.Named = append(e.Named, denied(path))
	}
	return e
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

// denied names the process that PROC/PID/ns/net is of, with what it is called as far as
// that may be seen, or the path.
func denied(path string) string {
	dir, ok := strings.CutSuffix(path, "/ns/net")
	if !ok {
		return path
	}
	name := "hidden"
	if comm, err := os.ReadFile(filepath.Join(dir, "comm")); err == nil {
		name = strings.TrimSuffix(string(comm), "\n")
	}
	return fmt.Sprintf("process %s (%s)", filepath.Base(dir), name)
}
