// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A tree is changed where a file is, and where one is new: it would be built, too.
func TestVersionOf(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("needs git")
	}
	dir := t.TempDir()
	git := func(args ...string) {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false", "-c", "tag.gpgsign=false"}, args...)...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %q: %v: %s", args, err, out)
		}
	}
	put := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want := func(want string) {
		t.Helper()
		if got, err := versionOf(t.Context(), dir); err != nil || got != want {
			t.Errorf("%q, %v, want %q", got, err, want)
		}
	}
	git("init", "-q")
	if got, err := versionOf(t.Context(), dir); err == nil {
		t.Errorf("%q where nothing is committed", got)
	}
	put("a", "1")
	put(".gitignore", "made\n")
	git("add", ".")
	git("commit", "-q", "-m", "x")
	git("tag", "v1")
	put("made", "")
	want("v1")
	out := new(bytes.Buffer)
	m := &matrix{top: dir, out: out}
	m.version = m.describe(t.Context())
	if m.watchTree(t.Context()); m.version != "v1" || out.Len() > 0 {
		t.Errorf("%q of a tree that stayed: %s", m.version, out)
	}
	put("new", "")
	want("v1-dirty")
	if m.watchTree(t.Context()); m.version != "v1-dirty" || !strings.Contains(out.String(), "changed while tests ran") {
		t.Errorf("%q of a tree that changed meanwhile: %s", m.version, out)
	}
	if err := os.Remove(filepath.Join(dir, "new")); err != nil {
		t.Fatal(err)
	}
	put("a", "2")
	want("v1-dirty")
}
