// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// foreign is an architecture that is not this machine's.
func foreign() string {
	if runtime.GOARCH == "arm64" {
		return "amd64"
	}
	return "arm64"
}

// pretend makes a kernel without modules, and tools in place of the real ones that do
// what the scripts say.
func pretend(t *testing.T, scripts map[string]string) *installed {
	t.Helper()
	in := &installed{target: target{name: "6.1", arch: foreign()}, dir: t.TempDir(), release: "6.1.0"}
	tools := t.TempDir()
	t.Setenv("PATH", tools+":"+os.Getenv("PATH"))
	files := map[string]string{filepath.Join(in.dir, "bin/busybox"): ""}
	for tool, script := range scripts {
		files[filepath.Join(tools, tool)] = "#!/bin/sh\n" + script + "\n"
	}
	for path, text := range files {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return in
}

// What modprobe says of a module that a kernel does not have.
const noModule = `for m; do :; done; echo "modprobe: FATAL: Module $m not found in directory /lib/modules/6.1.0" >&2; exit 1`

func TestBase(t *testing.T) {
	for _, tc := range []struct{ name, modprobe, cpio, err string }{
		{name: "well", modprobe: noModule, cpio: "echo whole"},
		{name: "modules are not read", modprobe: "echo 'modprobe: ERROR: could not open the index' >&2; exit 1", cpio: "echo whole", err: "could not open the index"},
		{name: "archive breaks off", modprobe: noModule, cpio: "echo half; exit 1", err: "exit status 1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := pretend(t, map[string]string{"modprobe": tc.modprobe, "depmod": "", "cpio": tc.cpio})
			path, err := in.base(t.Context(), t.TempDir())
			if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%v, want %q", err, tc.err)
			}
			made, globErr := filepath.Glob(filepath.Join(in.dir, "base-*"))
			if globErr != nil {
				t.Fatal(globErr)
			}
			if err != nil && len(made) > 0 || err == nil && (len(made) != 1 || made[0] != path) {
				t.Errorf("made %v, want %q", made, path)
			}
		})
	}
}
