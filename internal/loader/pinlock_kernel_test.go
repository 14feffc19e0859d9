// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
)

// wantHolder fails the test unless err names a process that started a moment ago.
func wantHolder(t *testing.T, err error, pid int) {
	t.Helper()
	var held *loader.HeldError
	if !errors.Is(err, loader.ErrHeld) || !errors.As(err, &held) {
		t.Fatalf("%v, want one that wraps ErrHeld", err)
	}
	if age := time.Since(held.Since); held.PID != pid || age < -2*time.Second || age > 10*time.Minute {
		t.Errorf("held by %d since %v, want %d", held.PID, held.Since, pid)
	}
	if !strings.Contains(err.Error(), fmt.Sprintf("pid %d, since 2", pid)) {
		t.Errorf("message %q", err)
	}
}

// TestTwoAgents: the second is told who the first is, whether it pins in the same
// place or only works on the same cgroup.
func TestTwoAgents(t *testing.T) {
	b := newPinBed(t)
	holder := child(t, "hold", b.dir, b.cgroup.Path)
	holder.await(t, "held")
	_, err := loader.OpenPins(b.dir)
	wantHolder(t, err, holder.Process.Pid)
	_, err = loader.FindPins(b.dir)
	wantHolder(t, err, holder.Process.Pid)
	_, err = loader.LockCgroup(b.cgroup.Path, false)
	wantHolder(t, err, holder.Process.Pid)
	// With the holder the locks go, however it ends.
	holder.kill()
	lock, err := loader.LockCgroup(b.cgroup.Path, false)
	if err != nil || len(lock.Strangers) != 0 {
		t.Fatalf("%+v, %v", lock, err)
	}
	if err := lock.Close(); err != nil {
		t.Error(err)
	}
	b.pins(t)
}

// TestStranger: whoever may open a cgroup may lock it; that keeps no agent out.
func TestStranger(t *testing.T) {
	labtest.Root(t)
	c := labtest.Cgroup(t)
	nobody := child(t, "flock", c.Path)
	nobody.await(t, "held")
	below := filepath.Join(c.Path, "below")
	if err := os.Mkdir(below, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{c.Path, below} {
		lock, err := loader.LockCgroup(path, false)
		if want := (loader.Stranger{PID: nobody.Process.Pid, Dir: c.Path}); err != nil || !slices.Contains(lock.Strangers, want) {
			t.Fatalf("%s: %+v, %v, want %+v", path, lock, err, want)
		}
		lock.Close()
	}
}

// TestAttachedElsewhere: programs that are pinned in another directory are not
// joined by a second set.
func TestAttachedElsewhere(t *testing.T) {
	b := newPinBed(t)
	a := b.start(t, loadPinned, loadertest.Fast)
	a.mustStop(t)
	for what, start := range map[string]func() error{
		"pinned": func() error {
			a, err := startIn(filepath.Join(filepath.Dir(b.dir), "other"), b.cgroup.Path, loadPinned, loadertest.Fast)
			return errors.Join(err, a.stop())
		},
		"not pinned": func() error { return loadertest.Load(t).Attach(b.cgroup.Path) },
	} {
		if err := start(); !errors.Is(err, loader.ErrAttached) {
			t.Errorf("%s: %v, want ErrAttached", what, err)
		}
	}
}

// TestMount: bpffs is mounted where the kernel keeps a place for it, and over
// nothing else. The mount itself takes no pins, and no directory of others does.
func TestMount(t *testing.T) {
	labtest.Root(t)
	fresh := child(t, "mounts")
	fresh.await(t, "mounted -rwx------")
	for i := range 6 {
		line, want := <-fresh.lines, `"/sys/fs/bpf": no directory for an agent's pins: it is the mount point of bpffs itself [name a directory below it: --bpffs /sys/fs/bpf/sockhealth]`
		if i >= 4 {
			want = `only others pin there, "globals" among them`
		}
		if !strings.HasPrefix(line, "true ") || !strings.Contains(line, want) {
			t.Errorf("%q, want %q", line, want)
		}
	}
	covered := child(t, "mounts", "covered")
	if line := <-covered.lines; !strings.Contains(line, `"/sys/fs/bpf/sockhealth" is not on bpffs`) {
		t.Errorf("over another file system: %q", line)
	}
}

// TestPinsMounted: a directory of pins may be a mount point itself, of which nothing is
// left but that; the root of bpffs is none wherever it is mounted.
func TestPinsMounted(t *testing.T) {
	labtest.Root(t)
	if line := <-child(t, "bound", t.TempDir()).lines; line != "taken" {
		t.Error(line)
	}
}

// TestPinsElsewhere: only bpffs takes pins, and only where no other user can get
// at them.
func TestPinsElsewhere(t *testing.T) {
	var missing *loader.MissingError
	dir := filepath.Join(t.TempDir(), "pins")
	if _, err := loader.OpenPins(dir); !errors.As(err, &missing) {
		t.Errorf("not on bpffs: %v, want a MissingError", err)
	}
	if _, err := os.Lstat(dir); !os.IsNotExist(err) {
		t.Errorf("it was made: %v", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := loader.FindPins(dir); !errors.As(err, &missing) || strings.Contains(err.Error(), "--no-pin") {
		t.Errorf("not on bpffs, but there: %v, want a MissingError, and no flag that only an agent's start has", err)
	}
	dir = loadertest.BPFFS(t)
	if _, err := loader.FindPins(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("none: %v, want ErrNotExist", err)
	}
	for what, set := range map[string]func() error{
		"others may write": func() error { return os.Chmod(dir, 0o777) },
		"another user's":   func() error { return errors.Join(os.Chmod(dir, 0o700), os.Chown(dir, 65534, 0)) },
	} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := set(); err != nil {
			t.Fatal(err)
		}
		if _, err := loader.OpenPins(dir); err == nil {
			t.Errorf("%s: taken", what)
		}
		if err := os.Remove(dir); err != nil {
			t.Fatal(err)
		}
	}
}
