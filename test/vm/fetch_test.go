// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"
)

func TestNewest(t *testing.T) {
	names := []string{
		"linux-image-6.18.9+deb13-cloud-amd64", "linux-image-6.18.15+deb13-cloud-amd64", "linux-image-6.18.15+deb13-cloud-amd64-unsigned",
		"linux-image-7.3.4+deb13-cloud-amd64", "linux-image-cloud-amd64",
	}
	for _, tc := range []struct{ pattern, want string }{
		{`linux-image-6\.18\..*-cloud-amd64`, "linux-image-6.18.15+deb13-cloud-amd64"},
		{`linux-image-cloud-amd64`, "linux-image-cloud-amd64"},
		{`linux-image-[0-9].*-cloud-amd64`, "linux-image-7.3.4+deb13-cloud-amd64"},
	} {
		got, err := newest(append([]string(nil), names...), tc.pattern)
		if err != nil || got != tc.want {
			t.Errorf("%s: %q, %v, want %q", tc.pattern, got, err, tc.want)
		}
	}
	if got, err := newest(names, `linux-image-4\..*`); err == nil {
		t.Errorf("got %q, want an error", got)
	}
}

func TestFind(t *testing.T) {
	all, err := find(nil)
	if err != nil || len(all) != 5 || all[0].name != "5.10" || all[4].name != "newest" {
		t.Errorf("%v, %v", all, err)
	}
	if _, err := find([]string{"6.1", "2.6"}); err == nil {
		t.Error("kernel 2.6 was found")
	}
}

// What a process left that was killed is removed; what a running one has stays.
func TestOpenCache(t *testing.T) {
	dir := t.TempDir()
	mine := filepath.Join(dir, runPrefix()+"x")
	// No process has this id: it is above the kernel's limit.
	for _, d := range []string{mine, filepath.Join(dir, "run-4194305-x"), filepath.Join(dir, "6.1")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := openCache(dir); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 2 || left[0].Name() != "6.1" || left[1].Name() != filepath.Base(mine) {
		t.Errorf("left: %v, %v", left, err)
	}
}

// A kernel that was not fetched is told with what to do.
func TestOpenMissing(t *testing.T) {
	ks, err := find([]string{"6.1"})
	if err != nil {
		t.Fatal(err)
	}
	if in, err := ks[0].open(t.TempDir()); err == nil {
		t.Errorf("got %+v", in)
	}
}

// A tool that fails is told with what it said.
func TestCommandFails(t *testing.T) {
	err := command(context.Background(), "sh", "-c", "echo no such thing >&2; exit 4")
	if err == nil || err.Error() != "sh -c echo no such thing >&2; exit 4: exit status 4: no such thing" {
		t.Errorf("got %v", err)
	}
}
