// SPDX-License-Identifier: Apache-2.0

package census

import (
	"bytes"
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// tree walks over directories of cgroups. Each holds dozens of files, of which it
// looks at none: package os would make something of each.
type tree struct {
	// see gets the inode number and the path of each below the first.
	see func(id uint64, path string)
}

// bufferSize takes the files of one cgroup with all controllers.
const bufferSize = 8 << 10

// walk sees what is below the directory that is open as at. What is gone meanwhile,
// or may not be read, it passes over.
func (t *tree) walk(at int, path string) {
	fd, err := unix.Openat(at, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	buf := make([]byte, bufferSize)
	for {
		n, err := unix.Getdents(fd, buf)
		if err != nil || n <= 0 {
			return
		}
		for rest := buf[:n]; len(rest) > 0; {
			var name string
			if name, rest = next(rest); name != "" {
				t.descend(fd, name, path+"/"+name)
			}
		}
	}
}

// descend sees one directory, and what is below it where there is anything: a
// directory has one link more for each that it holds.
func (t *tree) descend(at int, name, path string) {
	var st unix.Stat_t
	if unix.Fstatat(at, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
		return
	}
	t.see(st.Ino, path)
	if st.Nlink <= 2 {
		return
	}
	fd, err := unix.Openat(at, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	t.walk(fd, path)
}

// next takes the first of some struct linux_dirent64; name is "" where it is no
// directory, or leads back.
func next(entries []byte) (name string, rest []byte) {
	const length, kind, text = 16, 18, 19
	size := int(binary.NativeEndian.Uint16(entries[length:]))
	entry, rest := entries[:size], entries[size:]
	if entry[kind] != unix.DT_DIR {
		return "", rest
	}
	raw, _, _ := bytes.Cut(entry[text:], []byte{0})
	if s := string(raw); s != "." && s != ".." {
		name = s
	}
	return name, rest
}
