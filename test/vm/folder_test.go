// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"
)

// A folder that a killed process left goes, that of one which lives stays, and so
// does all else.
func TestSweep(t *testing.T) {
	cache := t.TempDir()
	left, kernel := filepath.Join(cache, runPrefix+"1"), filepath.Join(cache, "6.1")
	for _, dir := range []string{left, kernel} {
		if err := os.MkdirAll(filepath.Join(dir, "some"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	live, other := &folders{cache: cache}, &folders{cache: cache}
	if err := live.open(); err != nil {
		t.Fatal(err)
	}
	if err := other.open(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(left); !os.IsNotExist(err) {
		t.Errorf("what was left behind: %v", err)
	}
	for _, dir := range []string{live.run, other.run, kernel} {
		if _, err := os.Stat(dir); err != nil {
			t.Error(err)
		}
	}
	for _, f := range []*folders{live, other} {
		if err := f.close(); err != nil {
			t.Error(err)
		}
	}
	if names, err := os.ReadDir(cache); err != nil || len(names) != 1 {
		t.Errorf("in the end there are %v, %v", names, err)
	}
}
