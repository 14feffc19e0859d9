// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
	"github.com/sockhealth/sockhealth/internal/sockets"
)

// Looks, walks and events tell the cgroup in which the process was when it made the
// socket, wherever it is now, and whether or not that cgroup is still there.
func TestSocketCgroup(t *testing.T) {
	b := loadertest.New(t, loadertest.Fast)
	has := loadertest.Has(t, b.Programs, kernel.SocketCgroup)
	events := events(t, b.Programs)
	below := filepath.Join(b.Cgroup.Path, "below")
	if err := os.Mkdir(below, 0o755); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(below)
	if err != nil {
		t.Fatal(err)
	}
	want := info.Sys().(*syscall.Stat_t).Ino
	if !has {
		want = 0
	}
	enter(t, below)
	client, server := labtest.Pair(t, b.Lab, 0)
	enter(t, b.Cgroup.Path)
	if err := os.Remove(below); err != nil {
		t.Fatal(err)
	}

	s := sockets.New(b.Programs)
	snap, err := s.Get(b.Client, labtest.Addr(client.LocalAddr()), labtest.Addr(client.RemoteAddr()))
	if err != nil || snap.Cgroup != want {
		t.Errorf("a look tells cgroup %d, want %d; %v", snap.Cgroup, want, err)
	}
	// The server's end was made by the kernel, from the listener.
	for _, end := range []struct {
		name string
		scan func(func(conn.Snapshot) error) error
	}{
		{"client", func(fn func(conn.Snapshot) error) error { return s.Scan(b.Client, fn) }},
		{"server", func(fn func(conn.Snapshot) error) error { return s.Scan(b.Server, fn) }},
	} {
		met := 0
		err := end.scan(func(snap conn.Snapshot) error {
			if met++; snap.Cgroup != want {
				t.Errorf("%s: a walk tells cgroup %d, want %d", end.name, snap.Cgroup, want)
			}
			return nil
		})
		if err != nil || met != 1 {
			t.Errorf("%s: a walk meets %d sockets, %v", end.name, met, err)
		}
	}
	if err := s.Destroy(b.Client, snap.ID); err != nil {
		t.Fatal(err)
	}
	if e := next(t, events, client); e.Cause != loader.CauseDestroyed || e.Cgroup != want {
		t.Errorf("the event tells cgroup %d, want %d; %+v", e.Cgroup, want, e)
	}
	_ = server.Close()
}

// enter moves this process into a cgroup below its bed's.
func enter(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(path, "cgroup.procs"), fmt.Append(nil, os.Getpid()), 0); err != nil {
		t.Fatal(err)
	}
}
