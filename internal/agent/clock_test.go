// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// showsTime are the files of this package that may ask package time for the time:
// what they get is shown to people, or only ever compared with another such time of
// this process, which package time does by the monotonic clock.
var showsTime = []string{"freeze.go", "log.go", "journal.go", "rounds.go", "record.go"}

// TestNoWallClock: nothing that a verdict rests on comes from the clock on the
// wall, which jumps.
func TestNoWallClock(t *testing.T) {
	for _, dir := range []string{".", "../verdict", "../conn", "../conntrack", "../sockets", "../sockdiag"} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", dir, len(files), err)
		}
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") || dir == "." && slices.Contains(showsTime, name) {
				continue
			}
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			for _, line := range wallClock(t, name, text) {
				t.Errorf("%s reads the clock on the wall", line)
			}
		}
	}
	for _, bad := range []string{"time.Now()", "unix.ClockGettime(unix.CLOCK_REALTIME, nil)", "time.Since(x)"} {
		if len(wallClock(t, "bad.go", []byte("package p\nvar _ = "+bad))) != 1 {
			t.Errorf("%s is not noticed", bad)
		}
	}
}

// wallClock returns where a file asks for it.
func wallClock(t *testing.T, name string, text []byte) (found []string) {
	t.Helper()
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, name, text, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if pkg, ok := s.X.(*ast.Ident); ok && slices.Contains([]string{
				"time.Now", "time.Since", "time.Until", "unix.CLOCK_REALTIME", "unix.CLOCK_REALTIME_COARSE", "unix.Gettimeofday", "unix.Time",
			}, pkg.Name+"."+s.Sel.Name) {
				found = append(found, set.Position(n.Pos()).String())
			}
		}
		return true
	})
	return found
}
