// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// found is a result of a kernel; checks are "name status", space between.
func found(kernel, release, version, checks string) *result {
	var list []string
	fields := strings.Fields(checks)
	for i := 0; i < len(fields); i += 2 {
		list = append(list, `{"name":"`+fields[i]+`","status":"`+fields[i+1]+`"}`)
	}
	return &result{Kernel: kernel, Release: release, Version: version, Doctor: []byte(`{"checks":[` + strings.Join(list, ",") + `]}`)}
}

// The document has every row that any kernel has, the version, and what was found on
// another architecture under a version of its own.
func TestTable(t *testing.T) {
	old := found("5.10", "5.10.0-32-cloud-amd64", "abc1234", "kernel works CAP_BPF works btf works provoke degraded scan unneeded")
	old.Passed = 9
	fresh := found("6.1", "6.1.15+deb13-cloud-amd64", "abc1234", "btf works look works provoke untested namespaces works guard works")
	arm := found("6.1-arm64", "6.1.0-50-cloud-arm64", "def5678", "btf works look works provoke works guard works")
	arm.Passed, arm.Failed, arm.Skipped, arm.Machines, arm.Bad = 7, []string{"TestX (0.01s): no"}, map[string]int{"a": 1, "b": 2}, 5, 1
	const before = "a\n" + tableBegin + "\nold\n" + tableEnd + "\nb\n" + foreignBegin + "\n"
	const table = "a\n" + tableBegin + `
| check | since | 5.10 | 6.1 |
| --- | --- | --- | --- |
| ` + "`btf`" + ` | 5.10 | yes | yes |
| ` + "`look`" + ` | 5.10 | ? | yes |
| ` + "`provoke`" + ` | 5.15 | no | untested |
| ` + "`guard`" + ` | 5.15 | ? | yes |
| ` + "`scan`" + ` | 5.11 | no | ? |
| every privileged test and the demo |  | passes | not run |

Found by version ` + "`abc1234`" + `.
` + tableEnd + "\nb\n" + foreignBegin + "\n"
	const other = "Under Debian's 6.1 for arm64, emulated, version `def5678` was run. " +
		"`doctor` found the same as in the table's column but for `provoke` (yes here, untested there).\n" +
		"Of the tests 7 passed, 1 failed (`TestX`), and 3 were skipped; of the 5 machines that ran them and the demo 1 did not end well.\n"
	for _, tc := range []struct {
		name string
		rs   []*result
		want string
	}{
		{"two architectures", []*result{old, fresh, arm}, table + other + foreignEnd + "\n"},
		{"one", []*result{old, fresh}, table + "earlier\n" + foreignEnd + "\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := document(before+"earlier\n"+foreignEnd+"\n", tc.rs)
			if d := cmp.Diff(tc.want, got); err != nil || d != "" {
				t.Errorf("%v; -want +got:\n%s", err, d)
			}
		})
	}
}

// What would make a wrong document is refused, with what to do.
func TestTableRefuses(t *testing.T) {
	const text = tableBegin + "\n" + tableEnd + "\n" + foreignBegin + "\n" + foreignEnd + "\n"
	plain := func(kernel, version string) *result { return found(kernel, kernel+".0", version, "btf works") }
	for _, tc := range []struct {
		name, text string
		rs         []*result
		want       string
	}{
		{"versions", text, []*result{plain("5.10", "a"), plain("6.1", "a"), plain("newest", "b")}, "the result of kernel 5.10 is of version a, that of kernel newest of b [run, without a change between: make vm]"},
		{"a changed tree", text, []*result{plain("5.10", "a-dirty"), plain("6.1", "a-dirty")}, "the result of kernel 5.10 is of a changed tree, a-dirty [commit, and run: make vm]"},
		{"no version", text, []*result{plain("5.10", "a"), plain("6.1", "")}, "the result of kernel 6.1 says not of which version it is [run: make vm, in a clone of the repository]"},
		{"a changed tree of arm64", text, []*result{plain("6.1", "a"), plain("6.1-arm64", "b-dirty")}, "the result of kernel 6.1-arm64 is of a changed tree, b-dirty [commit, and run: make vm KERNEL=6.1-arm64]"},
		{"no line for the table", foreignBegin + "\n" + foreignEnd + "\n", []*result{plain("6.1", "a")}, `no line "` + tableBegin + `"`},
		{"no end of arm64", tableBegin + "\n" + tableEnd + "\n" + foreignBegin + "\n", []*result{plain("6.1", "a"), plain("6.1-arm64", "b")}, `no line "` + foreignEnd + `"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if out, err := document(tc.text, tc.rs); err == nil || err.Error() != tc.want {
				t.Errorf("%q, %v, want %s", out, err, tc.want)
			}
		})
	}
}

// Every column's result must be there, with doctor's report; that of arm64 may.
func TestReadResults(t *testing.T) {
	for _, tc := range []struct {
		name, missing, silent string
		want                  string // but for the folder
	}{
		{"all", "6.1-arm64", "", ""},
		{"a column missing", "6.12", "", "DIR has no result of kernel 6.12 [run: make vm]"},
		{"a report missing", "", "5.10", "the result of kernel 5.10 has no report of doctor [see DIR/5.10-the_others.log, and run: make vm]"},
		{"a report of arm64 missing", "", "6.1-arm64", "the result of kernel 6.1-arm64 has no report of doctor [see DIR/6.1-arm64-the_others.log, and run: make vm KERNEL=6.1-arm64]"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir, n := t.TempDir(), 0
			for _, k := range kernels {
				r := found(k.name, "6.1.0", "a", "btf works")
				if k.name == tc.silent {
					r.Doctor = nil
				}
				if k.name != tc.missing {
					n++
					if err := r.write(dir); err != nil {
						t.Fatal(err)
					}
				}
			}
			rs, err := readResults(dir)
			if tc.want == "" && (err != nil || len(rs) != n) {
				t.Errorf("%d results, %v, want %d", len(rs), err, n)
			}
			if want := strings.ReplaceAll(tc.want, "DIR", dir); want != "" && (err == nil || err.Error() != want) {
				t.Errorf("%v, want %s", err, want)
			}
		})
	}
}

// The document has the places to write to.
func TestPlaces(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "kernels.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, lines := range [][2]string{{tableBegin, tableEnd}, {foreignBegin, foreignEnd}} {
		if _, err := replace(string(text), lines[0], lines[1], ""); err != nil {
			t.Errorf("docs/kernels.md: %v", err)
		}
	}
}
