// SPDX-License-Identifier: Apache-2.0

package reload

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestChangeElsewhere: a change that happens outside the directory of the path, or to
// that directory, is noticed, too.
func TestChangeElsewhere(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, dir string) (path string, change func() error){
		"the end of a link is edited":   editLinked,
		"a directory above is switched": switchAbove,
		"the directory is replaced":     replaceDir,
		"another name of it is edited":  editOtherName,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path, change := change(t, t.TempDir())
			r := start(t, path)
			if r.inForce() != "a" {
				t.Fatalf("in force: %q", r.inForce())
			}
			pastTick(t, path)
			if err := change(); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the new policy", func() bool { return r.inForce() == "b" && r.Status().OK })
		})
	}
}

// editLinked edits the file that the path is a link to.
func editLinked(t *testing.T, dir string) (string, func() error) {
	there := filepath.Join(dir, "there.yaml")
	write(t, there, good)
	path := filepath.Join(sub(t, dir, "here"), "policy.yaml")
	link(t, there, path)
	return path, func() error { return os.WriteFile(there, []byte(other), 0o600) }
}

// switchAbove has the link that leads to the path go elsewhere.
func switchAbove(t *testing.T, dir string) (string, func() error) {
	write(t, filepath.Join(sub(t, dir, "v1"), "policy.yaml"), good)
	write(t, filepath.Join(sub(t, dir, "v2"), "policy.yaml"), other)
	link(t, "v1", filepath.Join(dir, "current"))
	link(t, "v2", filepath.Join(dir, "next"))
	return filepath.Join(dir, "current", "policy.yaml"), func() error {
		return os.Rename(filepath.Join(dir, "next"), filepath.Join(dir, "current"))
	}
}

// replaceDir puts another directory in the place of the path's.
func replaceDir(t *testing.T, dir string) (string, func() error) {
	path := filepath.Join(sub(t, dir, "conf"), "policy.yaml")
	write(t, path, good)
	write(t, filepath.Join(sub(t, dir, "next"), "policy.yaml"), other)
	return path, func() error {
		if err := os.Rename(filepath.Join(dir, "conf"), filepath.Join(dir, "old")); err != nil {
			return err
		}
		return os.Rename(filepath.Join(dir, "next"), filepath.Join(dir, "conf"))
	}
}

// editOtherName edits the file by another name, as a bind mount has one.
func editOtherName(t *testing.T, dir string) (string, func() error) {
	there, path := filepath.Join(dir, "there.yaml"), filepath.Join(sub(t, dir, "here"), "policy.yaml")
	write(t, there, good)
	if err := os.Link(there, path); err != nil {
		t.Fatal(err)
	}
	return path, func() error {
		// Of the same size, and as old as it was.
		st, err := os.Stat(there)
		if err == nil {
			err = os.WriteFile(there, []byte(other), 0o600)
		}
		if err != nil {
			return err
		}
		return os.Chtimes(there, time.Time{}, st.ModTime())
	}
}

// pastTick waits until the tick is over in which a file was changed: before Linux 6.13 what
// is done to it in the same one does not show in its times.
func pastTick(t *testing.T, path string) {
	t.Helper()
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	changed := time.Unix(st.Sys().(*syscall.Stat_t).Ctim.Unix())
	eventually(t, "the next tick", func() bool { return time.Since(changed) > 20*time.Millisecond })
}

// TestUntouched: a file that nobody touches any more is read once, however often it is
// looked at.
func TestUntouched(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "policy.yaml")
	write(t, path, good)
	r := start(t, path)
	write(t, path, other)
	eventually(t, "the new policy", func() bool { return r.inForce() == "b" })
	until := time.Now().Add(2*interval + settle)
	eventually(t, "some looks", func() bool { return time.Now().After(until) })
	if s := r.Status(); s.Taken != s.Loaded || strings.Count(r.text(), "\n") != 1 {
		t.Errorf("%+v, log: %s", s, r.text())
	}
}

func sub(t *testing.T, dir, name string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func link(t *testing.T, to, path string) {
	t.Helper()
	if err := os.Symlink(to, path); err != nil {
		t.Fatal(err)
	}
}
