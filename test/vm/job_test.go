// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// What a job that failed points to holds the program's output and the whole kernel
// log; what it says itself begins with the trouble.
func TestJobFails(t *testing.T) {
	arch := foreign()
	in := pretend(t, map[string]string{
		"modprobe": noModule, "depmod": "", "cpio": "",
		emulators[arch].binary: `for a; do case "$a" in file:*) printf "early\ninit: booted\nBUG: it\ntrace\n" >"${a#file:}";; esac; done; echo said`,
	})
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	init := filepath.Join(filepath.Dir(self), "init-"+arch)
	if err := os.WriteFile(init, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(init) })
	var out bytes.Buffer
	m := &matrix{folders: &folders{run: t.TempDir()}, results: t.TempDir(), timeout: time.Minute, out: &out}
	j := &job{kernel: in, name: "some", runs: []program{{path: init, dir: "/"}}}
	j.run(t.Context(), m)
	path := m.logOf(j)
	for _, want := range []string{"see " + path, "kernel log:\nBUG: it\ntrace"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it says %q, without %q", &out, want)
		}
	}
	kept, err := os.ReadFile(path)
	if err != nil || string(kept) != "said\n\nkernel log:\nearly\ninit: booted\nBUG: it\ntrace\n" {
		t.Errorf("kept %q, %v", kept, err)
	}
}
