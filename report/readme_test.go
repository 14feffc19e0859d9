// SPDX-License-Identifier: Apache-2.0

package report

import (
	"os"
	"strings"
	"testing"
)

// The README's lines of Go are those of the example, which is built.
func TestReadmeExample(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	example, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, shown, ok := strings.Cut(string(readme), "```go\n")
	shown, _, closed := strings.Cut(shown, "```")
	if !ok || !closed {
		t.Fatal("README.md shows no Go")
	}
	lines := 0
	for line := range strings.Lines(shown) {
		line = strings.TrimPrefix(strings.TrimSpace(line), "import ")
		if line == "" {
			continue
		}
		lines++
		if !strings.Contains(string(example), line+"\n") {
			t.Errorf("README.md has %q, the example has not", line)
		}
	}
	for _, want := range []string{"sockhealth/report\"\n", "transport.Close()", "Socket:", "OnResult:"} {
		if !strings.Contains(shown, want) {
			t.Errorf("README.md does not show %q", want)
		}
	}
	if lines < 10 {
		t.Errorf("found %d lines", lines)
	}
}
