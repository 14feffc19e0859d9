// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRunDirHoldsOne(t *testing.T) {
	path := filepath.Join(tempDir(t), "a", "run")
	first, err := OpenRunDir(path)
	if err != nil {
		t.Fatal(err)
	}
	wantMode(t, path, fs.ModeDir|0o755)
	_, err = OpenRunDir(path)
	want := fmt.Sprintf("lock run directory %q: run directory held by another agent, pid %d [stop that one, or choose another --run-dir]", path, os.Getpid())
	if !errors.Is(err, ErrHeld) || err.Error() != want {
		t.Errorf("second agent: %v, want %s", err, want)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := OpenRunDir(path)
	if err != nil {
		t.Fatalf("after the first has ended: %v", err)
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
}

// What a dead agent left is replaced: its socket, its pid, a half-made socket.
func TestRunDirAfterACrash(t *testing.T) {
	path := tempDir(t)
	for _, name := range []string{ReportSocket, ReportSocket + ".new"} {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(path, name), Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		l.Close()
	}
	if err := os.WriteFile(filepath.Join(path, lockFile), []byte("1234567890\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	dir, err := OpenRunDir(path)
	if err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(filepath.Join(path, lockFile)); string(b) != fmt.Sprintln(os.Getpid()) {
		t.Errorf("lock says %q", b)
	}
	l, err := dir.Listen(ReportSocket, 0o666)
	if err != nil {
		t.Fatal(err)
	}
	wantMode(t, filepath.Join(path, ReportSocket), fs.ModeSocket|0o666)
	c, err := net.Dial("unix", filepath.Join(path, ReportSocket))
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	l.Close()
	if err := dir.Close(); err != nil {
		t.Fatal(err)
	}
	left, _ := os.ReadDir(path)
	if len(left) != 1 || left[0].Name() != lockFile {
		t.Errorf("left behind: %v, want the lock file alone", left)
	}
}

// The modes hold under any umask.
func TestRunDirModes(t *testing.T) {
	for _, mask := range []int{0, 0o077} {
		t.Run(fmt.Sprintf("umask %03o", mask), func(t *testing.T) {
			path := filepath.Join(tempDir(t), "run")
			old := unix.Umask(mask)
			defer unix.Umask(old)
			dir, err := OpenRunDir(path)
			if err != nil {
				t.Fatal(err)
			}
			defer dir.Close()
			wantMode(t, path, fs.ModeDir|0o755)
			for name, mode := range map[string]fs.FileMode{ReportSocket: 0o666, AdminSocket: 0o600} {
				l, err := dir.Listen(name, mode)
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				wantMode(t, filepath.Join(path, name), fs.ModeSocket|mode)
			}
		})
	}
}

func TestRunDirRefused(t *testing.T) {
	base := tempDir(t)
	open := filepath.Join(base, "open")
	if err := os.Mkdir(open, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o777|fs.ModeSticky); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(base, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	linked := filepath.Join(base, "linked")
	if err := os.Mkdir(linked, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(file, filepath.Join(linked, lockFile)); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		open:   fmt.Sprintf("open run directory %q: others may write to it, mode 1777 [chmod 0755 it, or choose another]", open),
		file:   fmt.Sprintf("open run directory %q: not a directory", file),
		linked: fmt.Sprintf("open run directory %q: open %s/lock: too many levels of symbolic links", linked, linked),
	} {
		d, err := OpenRunDir(path)
		if err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
		if d != nil {
			t.Error("a directory beside the error")
		}
	}
}

func TestListenRefused(t *testing.T) {
	path := tempDir(t)
	dir, err := OpenRunDir(path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	precious := filepath.Join(path, "precious")
	if err := os.WriteFile(precious, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", 100)
	for name, want := range map[string]string{
		"precious": fmt.Sprintf("listen on %q: %q is in the way and no socket [remove it]", precious, precious),
		long: fmt.Sprintf("listen on %q: path of %d bytes, a Unix socket's may have 103 [choose a shorter --run-dir]",
			filepath.Join(path, long), len(path)+101),
	} {
		if _, err := dir.Listen(name, 0o666); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if _, err := os.Stat(precious); err != nil {
		t.Error(err)
	}
}

func wantMode(t *testing.T, path string, want fs.FileMode) {
	t.Helper()
	st, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	if st.Mode() != want {
		t.Errorf("%s has mode %s, want %s", path, st.Mode(), want)
	}
}
