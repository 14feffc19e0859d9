// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const testOutput = `=== RUN   TestWell
--- PASS: TestWell (0.00s)
=== RUN   TestPart
    --- PASS: TestPart/one (0.00s)
    part_test.go:7: log line
    --- FAIL: TestPart/two (0.00s)
--- FAIL: TestPart (0.01s)
=== RUN   TestNew
    new_test.go:17: needs provoke (Linux 5.15)
--- SKIP: TestNew (0.00s)
FAIL
`

func TestCount(t *testing.T) {
	r := &result{Skipped: make(map[string]int)}
	r.count(testOutput)
	want := &result{Passed: 2, Failed: []string{"TestPart/two (0.00s): log line", "TestPart (0.01s): log line"}, Skipped: map[string]int{"needs provoke (Linux 5.15)": 1}}
	if d := cmp.Diff(want, r, cmp.AllowUnexported(result{})); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

// Lines are passed on whole and live: all, or those that tell.
func TestLines(t *testing.T) {
	for _, tc := range []struct {
		all  bool
		want string
	}{
		{true, "6.1 === RUN   TestWell\n6.1 --- PASS: TestWell (0.00s)\n6.1    a_test.go:1: seed 5\n6.1 --- FAIL: TestX (0.1s)\n6.1 end\n"},
		{false, "6.1 --- FAIL: TestX (0.1s)\n"},
	} {
		var out bytes.Buffer
		l := &lines{w: &out, prefix: "6.1 ", all: tc.all}
		for _, part := range []string{"=== RUN   Test", "Well\n--- PASS: TestWell (0.00s)\r\n   a_test.go:1: se", "ed 5\n--- FAIL: TestX", " (0.1s)\nend"} {
			if n, err := l.Write([]byte(part)); n != len(part) || err != nil {
				t.Fatalf("%d, %v", n, err)
			}
		}
		l.flush()
		if out.String() != tc.want {
			t.Errorf("got %q, want %q", out.String(), tc.want)
		}
	}
}

func TestAllRan(t *testing.T) {
	const well, none = "=== RUN   TestX\n--- PASS: TestX (0.00s)\nPASS\n", "testing: warning: no tests to run\nPASS\n"
	for _, tc := range []struct {
		name, output string
		binaries     int
		whole, ok    bool
	}{
		{"all", well + well, 2, true, true},
		{"one that ran nothing", well + none, 2, true, false},
		{"one that skipped what it was to run", well + none, 2, false, true},
		{"one that did not end", well + "=== RUN   TestX\n", 2, false, false},
		{"nothing", "", 1, false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := allRan([]byte(tc.output), tc.binaries, tc.whole); (err == nil) != tc.ok {
				t.Errorf("%v, want ok: %t", err, tc.ok)
			}
		})
	}
}

// TestInOrder: every job once, each kernel's first ones first.
func TestInOrder(t *testing.T) {
	a, b, c := &job{name: "a"}, &job{name: "b"}, &job{name: "c"}
	x, y := &job{name: "x"}, &job{name: "y"}
	if got, want := inOrder([][]*job{{a, b, c}, {x, y}}), []*job{x, a, y, b, c}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
