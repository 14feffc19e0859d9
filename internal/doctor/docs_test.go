// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
)

// rows returns the cells of the first table of docs/kernels.md whose head begins so.
func rows(t *testing.T, head string) [][]string {
	t.Helper()
	return rowsOf(t, "kernels.md", head)
}

// rowsOf is rows of another document.
func rowsOf(t *testing.T, name, head string) [][]string {
	t.Helper()
	text, err := os.ReadFile("../../docs/" + name)
	if err != nil {
		t.Fatal(err)
	}
	var out [][]string
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if len(out) == 0 && !strings.HasPrefix(line, head) {
			continue
		}
		if !strings.HasPrefix(line, "|") {
			return out
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.Trim(strings.TrimSpace(cells[i]), "`")
		}
		out = append(out, cells)
	}
	return out
}

// wantDocument holds the running kernel's column of the support table against
// what was found. A kernel that the table does not name has none.
func wantDocument(t *testing.T, checks []Check) {
	t.Helper()
	running, _, err := kernel.Running()
	if err != nil {
		t.Fatal(err)
	}
	table := rows(t, "| check |")
	if len(table) < 3 {
		t.Fatal("docs/kernels.md has no table of checks [run: make vm, make vm-table]")
	}
	column := slices.Index(table[0], running.String())
	if column < 0 {
		t.Logf("docs/kernels.md has no column for Linux %s", running)
		return
	}
	documented := make(map[string]bool)
	for _, row := range table[2:] {
		documented[row[0]] = true
	}
	found := make(map[string]string)
	for _, c := range checks {
		if !documented[c.Name] && c.Name != "kernel" && c.Name != "namespaces" && c.Name != "foreign_programs" && !strings.HasPrefix(c.Name, "CAP_") {
			t.Errorf("docs/kernels.md has no row for %s [run: make vm, make vm-table]", c.Name)
		}
		found[c.Name] = map[bool]string{true: "yes", false: "no"}[c.Status == Works]
	}
	for _, row := range table[2:] {
		if have, ok := found[row[0]]; ok && !labtest.Without(row[0]) && have != row[column] {
			t.Errorf("docs/kernels.md says %q of %s under Linux %s, found %q [run: make vm, make vm-table]", row[column], row[0], running, have)
		}
	}
}

// The document says of every feature what the program says.
func TestDocument(t *testing.T) {
	table := rows(t, "| feature |")
	var want [][]string
	for _, f := range kernel.Features() {
		want = append(want, []string{f.String(), f.Since().String(), f.Without()})
	}
	if len(table) < 2 || fmt.Sprint(table[2:]) != fmt.Sprint(want) {
		t.Errorf("docs/kernels.md has %q, want %q", table, want)
	}
	for _, row := range rows(t, "| check |") {
		for _, f := range kernel.Features() {
			if row[0] == f.String() && row[1] != f.Since().String() {
				t.Errorf("docs/kernels.md says %s of %s, want %s", row[1], f, f.Since())
			}
		}
	}
}

// TestCommandDocument: docs/cli.md has every check, in the order in which doctor tells
// them, and no other; and of which kernel on it works where not every one has it.
func TestCommandDocument(t *testing.T) {
	want := []string{"kernel", "btf", "CAP_..."} // these stand in one row
	for _, p := range plans() {
		want = append(want, p.name)
	}
	since := make(map[string]kernel.Release)
	for _, f := range kernel.Features() {
		since[f.String()] = f.Since()
	}
	table := rowsOf(t, "cli.md", "| check | what is done |")
	if len(table) < 3 {
		t.Fatal("docs/cli.md has no table of doctor's checks")
	}
	var have []string
	for _, row := range table[2:] {
		for name := range strings.SplitSeq(row[0], ",") {
			have = append(have, strings.Trim(strings.TrimSpace(name), "`"))
		}
		floor, ok := since[row[0]]
		if text := fmt.Sprintf("(Linux %s)", floor); ok && kernel.Floor().Before(floor) != strings.HasSuffix(row[1], text) {
			t.Errorf("docs/cli.md says of %s: %q, it works from Linux %s on", row[0], row[1], floor)
		}
	}
	if !slices.Equal(have, want) {
		t.Errorf("docs/cli.md has the checks\n%q, doctor has\n%q", have, want)
	}
}
