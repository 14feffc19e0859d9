// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestAlternatives(t *testing.T) {
	for pattern, want := range map[string][]string{
		"TestA":                   {"TestA"},
		"TestA|TestB$":            {"TestA", "TestB$"},
		"^(TestA|TestB.*)$":       {"^TestA$", "^TestB.*$"},
		"^(?:TestA|B)$|TestC":     {"^TestA$", "^B$", "TestC"},
		"^Test(A|(B|C)D)$":        {"^TestA$", "^TestBD$", "^TestCD$"},
		"Test(A|B)+":              {"Test(A|B)+"},
		"Test[A|(]|TestB":         {"Test[A|(]", "TestB"},
		`Test\(|TestB`:            {`Test\(`, "TestB"},
		"(?i)testa|TestB":         {"(?i)testa", "TestB"},
		"^(TestA|TestB)$/^(x|y)$": {"^TestA$/^x$", "^TestA$/^y$", "^TestB$/^x$", "^TestB$/^y$"},
	} {
		got := alternatives(pattern)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(slices.Compact(got), want) {
			t.Errorf("%s: got %q, want %q", pattern, got, want)
		}
	}
}

func TestDemand(t *testing.T) {
	names := []string{"TestIdle", "TestIdleBound", "FuzzRead"}
	for _, tc := range []struct{ pattern, want string }{
		{"TestIdle", ""},
		{"^(TestIdle|Fuzz.*)$", ""},
		{"^TestIdle$/part", ""},
		{".", ""},
		{"^(TestIdle|TestGone|TestLost.*)$", `["^TestGone$" "^TestLost.*$"] matches no test`},
		{"TestIdle[", "pattern \"TestIdle[\": error parsing regexp: missing closing ]: `[`"},
	} {
		if err := demand(tc.pattern, names); (err == nil) != (tc.want == "") || err != nil && err.Error() != tc.want {
			t.Errorf("%s: %v, want %q", tc.pattern, err, tc.want)
		}
	}
}

// listed has the tests of a package that machines run, and only them.
func listed(t *testing.T, run string) (*matrix, error) {
	t.Helper()
	top, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	m := &matrix{top: top, run: run}
	return m, m.list(t.Context())
}

// What the variants name is there, and so is what CI does.
func TestNamed(t *testing.T) {
	script, err := os.ReadFile("../../.ci/run")
	if err != nil {
		t.Fatal(err)
	}
	run := regexp.MustCompile(`(?m)^make vm .*\bRUN='(.*)'`).FindSubmatch(script)
	if run == nil {
		t.Fatal(".ci/run has no line `make vm ... RUN='...'`")
	}
	pattern := strings.ReplaceAll(string(run[1]), "$$", "$")
	if n := len(alternatives(pattern)); n < 30 {
		t.Errorf("%d tests in %s: the pattern was not taken apart", n, pattern)
	}
	m, err := listed(t, pattern)
	if err != nil {
		t.Fatal(err)
	}
	if !m.matched("internal/loader") || m.matched("internal/kernel") {
		t.Errorf("loader %t, want true; kernel, which machines do not run, %t", m.matched("internal/loader"), m.matched("internal/kernel"))
	}
	if names := m.tests["internal/doctor"]; !slices.Contains(names, "TestExamine") || slices.Contains(names, "TestMain") {
		t.Errorf("doctor's tests are %q", names)
	}
}

// A name that no test has any more is told.
func TestNamedGone(t *testing.T) {
	_, err := listed(t, "^(TestExamine|TestNobodyWrote)$")
	if err == nil || !strings.Contains(err.Error(), `["^TestNobodyWrote$"] matches no test of any package that runs in machines [`) {
		t.Error(err)
	}
	m := &matrix{tests: map[string][]string{}}
	if err := m.listVariants(); err == nil || !strings.Contains(err.Error(), "matches no test of internal/") {
		t.Error(err)
	}
}
