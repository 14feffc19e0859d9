// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestSweep(t *testing.T) {
	base := t.TempDir()
	dir, other := filepath.Join(base, "dir"), filepath.Join(base, "other")
	for _, path := range []string{filepath.Join(dir, "below"), other} {
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	told := keepDir + dir + "\n" + keepCgroup + filepath.Join(base, "gone already") + "\n"
	if err := sweep(strings.NewReader(told), time.Second); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the folder is still there: %v", err)
	}
	if _, err := os.Stat(other); err != nil {
		t.Errorf("what nobody named is gone: %v", err)
	}
}

// A cgroup is removed as one: what else is in it stays, and the janitor says so.
func TestSweepRemovesNoTreeAsACgroup(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "below"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := sweep(strings.NewReader(keepCgroup+dir+"\n"), 0); err == nil {
		t.Error("no error")
	}
	if _, err := os.Stat(filepath.Join(dir, "below")); err != nil {
		t.Error(err)
	}
}
