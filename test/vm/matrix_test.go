// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// What is run beside the tests that are asked for: nothing, or all that is run beside
// all tests. Packages without any of them are left out.
func TestPlan(t *testing.T) {
	binaries := []binary{{path: "agent"}}
	for _, v := range variants {
		for pkg := range v.tests {
			if !slices.ContainsFunc(binaries, func(b binary) bool { return b.pkg == pkg }) {
				binaries = slices.Insert(binaries, 0, binary{pkg: pkg, path: pkg})
			}
		}
	}
	newest := &installed{target: target{name: "newest", arch: "amd64"}}
	const machines = "no tcp_diag: internal/agent internal/doctor internal/sockets; no IPv6: internal/agent internal/doctor internal/loader internal/prober internal/sockets"
	for _, tc := range []struct {
		name, run string
		beside    bool
		want      string // the jobs, each with what it runs
		doctor    bool
	}{
		{"all", "", false, "internal/loader: internal/loader; test/cases, test/judge, internal/prober: internal/prober; internal/agent: internal/agent; " +
			"the others: agent agent internal/doctor internal/sockets; " + machines, true},
		{"some", "^TestExamine$", false, "the others: internal/doctor", false},
		{"some, and the variants", "^(TestAdopt|TestExamine)$", true, "internal/loader: internal/loader; the others: agent agent internal/doctor; " + machines, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := &matrix{run: tc.run, beside: tc.beside, tests: map[string][]string{"internal/doctor": {"TestExamine"}, "internal/loader": {"TestAdopt"}}}
			jobs, err := m.plan(newest, slices.Clone(binaries))
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			doctor := false
			for _, j := range jobs {
				var runs []string
				for _, p := range j.runs {
					runs = append(runs, p.path)
				}
				slices.Sort(runs)
				got = append(got, j.name+": "+strings.Join(runs, " "))
				doctor = doctor || j.doctor
				if variant := strings.HasPrefix(j.name, "no "); j.whole != (tc.run == "" || variant) {
					t.Errorf("%s: whole is %t", j.name, j.whole)
				}
			}
			if strings.Join(got, "; ") != tc.want || doctor != tc.doctor {
				t.Errorf("got %s, doctor: %t\nwant %s, %t", strings.Join(got, "; "), doctor, tc.want, tc.doctor)
			}
		})
	}
}

// A kernel under which nothing passed is no success, whatever passed under others; and a
// result is kept where something failed, but not of some tests alone.
func TestConcludeMatrix(t *testing.T) {
	on := func(name, output string, status int) *job {
		return &job{kernel: &installed{target: target{name: name}, release: name + ".0"}, name: "x", output: []byte(output), status: status}
	}
	const well = "--- PASS: TestX (0.00s)\nPASS\n"
	old, fresh := target{name: "5.10"}, target{name: "6.1"}
	for _, tc := range []struct {
		name, run string
		jobs      []*job
		want      string // "" for no error
	}{
		{"well", "", []*job{on("5.10", well, 0), on("6.1", well, 0)}, ""},
		{"nothing under one kernel", "TestX", []*job{on("5.10", "PASS\n", 0), on("6.1", well, 0)}, "no test passed under kernel 5.10"},
		{"a machine that failed", "", []*job{on("5.10", well, 0), on("6.1", well, 1)}, "1 of 2 machines failed"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := &matrix{out: new(bytes.Buffer), results: t.TempDir(), run: tc.run, version: "abc"}
			err := m.conclude([]target{old, fresh}, tc.jobs)
			if (err == nil) != (tc.want == "") || err != nil && err.Error() != tc.want {
				t.Errorf("%v, want %q", err, tc.want)
			}
			kept, err := os.ReadFile(filepath.Join(m.results, "6.1.json"))
			if (err == nil) != (tc.run == "") || tc.run == "" && !strings.Contains(string(kept), `"Version": "abc"`) {
				t.Errorf("%s, %v", kept, err)
			}
		})
	}
}
