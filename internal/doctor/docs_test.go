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
// what was found.
func wantDocument(t *testing.T, checks []Check) {
	t.Helper()
	running, _, err := kernel.Running()
	if err != nil {
		t.Fatal(err)
	}
	table := rows(t, "| check |")
	if len(table) < 3 {
		t.Fatal("docs/kernels.md has no table of checks [commit, and run: make vm, make vm-table]")
	}
	for _, wrong := range misdocumented(table, running.String(), os.Getenv("SOCKHEALTH_VM") != "", checks) {
		t.Errorf("docs/kernels.md %s [run: make vm, whose results are kept although this fails, and then: make vm-table]", wrong)
	}
}

// misdocumented says what the table's column of a kernel has otherwise than it was found.
// Only the kernels that tests have machines of need one.
func misdocumented(table [][]string, running string, guest bool, checks []Check) (wrong []string) {
	say := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	documented := make(map[string]bool)
	for _, row := range table[2:] {
		documented[row[0]] = true
	}
	found := make(map[string]string)
	for _, c := range checks {
		if !documented[c.Name] && c.Name != "kernel" && c.Name != "namespaces" && c.Name != "foreign_programs" && !strings.HasPrefix(c.Name, "CAP_") {
			say("has no row for %s", c.Name)
		}
		switch c.Status { // as test/vm writes it
		case Works:
			found[c.Name] = "yes"
		case Untested:
			found[c.Name] = "untested"
		default:
			found[c.Name] = "no"
		}
	}
	column := slices.Index(table[0], running)
	if column < 0 {
		if guest {
			say("has no column for Linux %s", running)
		}
		return wrong
	}
	for _, row := range table[2:] {
		if have, ok := found[row[0]]; ok && !labtest.Without(row[0]) && have != row[column] {
			say("says %q of %s under Linux %s, found %q", row[column], row[0], running, have)
		}
	}
	return wrong
}

// A column that is missing is wrong only in the machines of `make vm`, whose kernels the
// table is about.
func TestMisdocumented(t *testing.T) {
	table := [][]string{{"check", "since", "6.1"}, {"---", "---", "---"}, {"btf", "5.10", "yes"}, {"scan", "5.11", "no"}, {"tests", "", "passes"}}
	well := []Check{{Name: "kernel", Status: Works}, {Name: "CAP_BPF", Status: Missing}, {Name: "btf", Status: Works}, {Name: "scan", Status: Unneeded}}
	for _, tc := range []struct {
		name, running string
		guest         bool
		checks        []Check
		want          []string
	}{
		{"as found", "6.1", true, well, nil},
		{"a kernel of users", "6.2", false, well, nil},
		{"a kernel of the machines", "6.2", true, well, []string{"has no column for Linux 6.2"}},
		{"a row missing", "6.2", false, append(well, Check{Name: "look"}), []string{"has no row for look"}},
		{"other than found", "6.1", false, []Check{{Name: "btf", Status: Degraded}, {Name: "scan", Status: Untested}},
			[]string{`says "yes" of btf under Linux 6.1, found "no"`, `says "no" of scan under Linux 6.1, found "untested"`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := misdocumented(table, tc.running, tc.guest, tc.checks); !slices.Equal(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
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
