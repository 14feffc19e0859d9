// SPDX-License-Identifier: Apache-2.0

// Package docs holds the tests that the documents name against the code. There is
// nothing else in it.
package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	function = regexp.MustCompile(`(?m)^func ((?:Test|Benchmark)\w+)\(`)
	named    = regexp.MustCompile(`(?:Test|Benchmark)\w+(?:\.\.\.)?`) // "...": all that begin so
	place    = regexp.MustCompile(`^\s*(\w+): `)
)

// tests returns the names of all, by the name of their folder; cmd is cmd/sockhealth.
func tests(t *testing.T) map[string][]string {
	t.Helper()
	all := make(map[string][]string)
	err := filepath.WalkDir("..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		folder := filepath.Base(filepath.Dir(path))
		if folder == "sockhealth" {
			folder = "cmd"
		}
		for _, m := range function.FindAllSubmatch(text, -1) {
			all[folder] = append(all[folder], string(m[1]))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// exists reports whether one of the names is meant.
func exists(all []string, name string) bool {
	begin, many := strings.CutSuffix(name, "...")
	for _, n := range all {
		if n == name || many && strings.HasPrefix(n, begin) {
			return true
		}
	}
	return false
}

// TestNames: the tests that the last column of a table names are there, in the package
// that it says, and every guard has one.
func TestNames(t *testing.T) {
	all := tests(t)
	for _, doc := range []string{"architecture.md", "kernel-facts.md"} {
		text, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		found, guards := 0, false
		for row := range strings.Lines(string(text)) {
			row = strings.TrimSuffix(strings.TrimSpace(row), "|")
			guards = guards && row != "" || row == "| guard | test "
			if !strings.HasPrefix(row, "|") {
				continue
			}
			in, before := "", found
			for part := range strings.SplitSeq(row[strings.LastIndex(row, "|")+1:], ";") {
				if m := place.FindStringSubmatch(part); m != nil {
					in = m[1]
				}
				for _, name := range named.FindAllString(part, -1) {
					if found++; !exists(all[in], name) {
						t.Errorf("%s: no %s in %q: %s", doc, name, in, row)
					}
				}
			}
			if guards && found == before && !strings.HasPrefix(row, "|---") && row != "| guard | test " {
				t.Errorf("%s: no test: %s", doc, row)
			}
		}
		if found < 50 {
			t.Errorf("%s names %d tests", doc, found)
		}
	}
}
