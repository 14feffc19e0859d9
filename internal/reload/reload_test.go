// SPDX-License-Identifier: Apache-2.0

package reload

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/policy"
)

const (
	good  = "version: 1\npeers: [{name: a, cidrs: [10.91.2.0/24]}]\n"
	other = "version: 1\npeers: [{name: b, cidrs: [10.91.2.0/24]}]\n"
	bad   = "version: 1\npeers: [{name: b, cidrs: [10.91.2.1/24], color: red}]\n"
)

// rig is a reloader that is running.
type rig struct {
	*Reloader
	mu  sync.Mutex
	log bytes.Buffer
	now *policy.Policy
	err error // what apply returns
}

func (r *rig) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.Write(b)
}

func (r *rig) inForce() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.now == nil {
		return ""
	}
	return r.now.Peers[0].Name
}

func (r *rig) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.String()
}

func start(t *testing.T, path string) *rig {
	t.Helper()
	r := &rig{}
	r.Reloader = New(path, func(p *policy.Policy) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.err == nil {
			r.now = p
		}
		return r.err
	}, slog.New(slog.NewTextHandler(r, nil)))
	w, err := r.Watch()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Load(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-done, w.Close()); err != nil {
			t.Error(err)
		}
	})
	return r
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !cond(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestChange(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.yaml")
	write(t, path, good)
	r := start(t, path)
	first := r.Status()
	if !first.OK || first.Revision == "" || r.inForce() != "a" {
		t.Errorf("status %+v, in force %q", first, r.inForce())
	}
	// Written in place, then replaced by a rename, twice.
	write(t, path, other)
	eventually(t, "the new policy", func() bool { return r.inForce() == "b" })
	for _, text := range []string{good, other} {
		tmp := path + ".tmp"
		write(t, tmp, text)
		if err := os.Rename(tmp, path); err != nil {
			t.Fatal(err)
		}
		want := map[string]string{good: "a", other: "b"}[text]
		eventually(t, "the renamed policy", func() bool { return r.inForce() == want })
	}
}

// TestUnchanged: a policy is in force since it came, however often the file is read and
// whatever stood in it meanwhile.
func TestUnchanged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.yaml")
	write(t, path, good)
	r := New(path, func(*policy.Policy) error { return nil }, slog.New(slog.DiscardHandler))
	if err := r.Load(); err != nil {
		t.Fatal(err)
	}
	first := r.Status()
	if first.Loaded.IsZero() || first.Taken != first.Loaded {
		t.Errorf("at first: %+v", first)
	}
	write(t, path, bad)
	if err := r.Reload("asked"); err == nil || r.Status().Taken != first.Taken || r.Status().Loaded != first.Loaded {
		t.Errorf("refused: %v, %+v", err, r.Status())
	}
	write(t, path, good)
	if err := r.Reload("asked"); err != nil {
		t.Fatal(err)
	}
	again := r.Status()
	if !again.OK || again.Loaded != first.Loaded || !again.Taken.After(first.Taken) {
		t.Errorf("unchanged: %+v, at first %+v", again, first)
	}
	write(t, path, other)
	if err := r.Reload("asked"); err != nil {
		t.Fatal(err)
	}
	if s := r.Status(); !s.Loaded.After(again.Taken) || s.Taken != s.Loaded {
		t.Errorf("changed: %+v, before %+v", s, again)
	}
}

// TestBadFile: refused whole, told once with every error, and the old one stays.
func TestBadFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.yaml")
	write(t, path, good)
	r := start(t, path)
	revision := r.Status().Revision
	write(t, path, bad)
	eventually(t, "the refusal", func() bool { return !r.Status().OK })
	s := r.Status()
	var errs *policy.Errors
	if !errors.As(s.Err, &errs) || len(errs.List) != 2 || s.Revision != revision || r.inForce() != "a" {
		t.Errorf("status %+v, in force %q; want 2 errors and the old policy", s, r.inForce())
	}
	eventually(t, "the line in the log", func() bool { return strings.Contains(r.text(), "policy refused") })
	if n := strings.Count(r.text(), "\n"); n != 1 {
		t.Errorf("%d lines:\n%s", n, r.text())
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the missing file to be noticed", func() bool { return errors.Is(r.Status().Err, os.ErrNotExist) })
	write(t, path, other)
	eventually(t, "the file that is back", func() bool { return r.inForce() == "b" && r.Status().OK })
}

// TestConfigMap: the file is a link through a directory link that is swapped,
// as Kubernetes does, more than once.
func TestConfigMap(t *testing.T) {
	dir := t.TempDir()
	swap := func(name, text string) {
		t.Helper()
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, name, "policy.yaml"), text)
		if err := os.Symlink(name, filepath.Join(dir, "..tmp")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, "..tmp"), filepath.Join(dir, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	swap("..1", good)
	path := filepath.Join(dir, "policy.yaml")
	if err := os.Symlink("..data/policy.yaml", path); err != nil {
		t.Fatal(err)
	}
	r := start(t, path)
	for i, text := range []string{other, good, other} {
		swap("..next"+string(rune('0'+i)), text)
		want := map[string]string{good: "a", other: "b"}[text]
		eventually(t, "the swapped policy", func() bool { return r.inForce() == want })
	}
}

// TestApplyFails: what cannot be put in force is a failure like a bad file.
func TestApplyFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.yaml")
	write(t, path, good)
	r := start(t, path)
	r.mu.Lock()
	r.err = errors.New("the kernel has no room")
	r.mu.Unlock()
	write(t, path, other)
	eventually(t, "the failure", func() bool { return !r.Status().OK })
	if err := r.Reload("asked"); err == nil || r.inForce() != "a" {
		t.Errorf("error %v, in force %q", err, r.inForce())
	}
}
