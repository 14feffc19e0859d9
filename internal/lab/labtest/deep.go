// SPDX-License-Identifier: Apache-2.0

package labtest

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// DeepCgroups makes cgroups below another, each in the one before, until the last
// one's path is longer than any that the kernel opens, and returns their ids.
func DeepCgroups(t testing.TB, path string) (ids []uint64) {
	t.Helper()
	at, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	first := at
	t.Cleanup(func() { _ = unix.Close(first) })
	for n := 0; n <= 4096; {
		in, name := at, strings.Repeat("d", 255)
		if err := unix.Mkdirat(in, name, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.Unlinkat(in, name, unix.AT_REMOVEDIR); err != nil {
				t.Error(err)
			}
		})
		if at, err = unix.Openat(in, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
			t.Fatal(err)
		}
		fd := at
		t.Cleanup(func() { _ = unix.Close(fd) })
		var st unix.Stat_t
		if err := unix.Fstat(at, &st); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, st.Ino)
		n += 1 + len(name)
	}
	return ids
}
