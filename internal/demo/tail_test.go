// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTailKeepsWholeLinesOfTheEnd(t *testing.T) {
	var long tail
	for n := range 10000 {
		fmt.Fprintf(&long, "line %d\n", n)
	}
	got := long.String()
	if len(got) > tailSize || len(got) < tailSize-100 {
		t.Errorf("%d bytes kept", len(got))
	}
	if !strings.HasPrefix(got, "line ") || !strings.HasSuffix(got, "\nline 9999\n") {
		t.Errorf("kept %.20q to %q", got, got[len(got)-20:])
	}
	var short tail
	fmt.Fprint(&short, "a\nb")
	if got := short.String(); got != "a\nb" {
		t.Errorf("kept %q", got)
	}
}

func TestLinesHoweverTheyCome(t *testing.T) {
	var got []string
	w := &lines{fn: func(line []byte) { got = append(got, string(line)) }}
	for _, part := range []string{"a", "b\nc\n\n", "", "d\n", "unfinished"} {
		if n, err := w.Write([]byte(part)); n != len(part) || err != nil {
			t.Fatalf("%d, %v", n, err)
		}
	}
	if diff := cmp.Diff([]string{"ab", "c", "", "d"}, got); diff != "" {
		t.Error(diff)
	}
}
