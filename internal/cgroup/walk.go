// SPDX-License-Identifier: Apache-2.0

// Package cgroup walks over a hierarchy of cgroups. Whoever may make cgroups in a part
// of it decides how deep that is and how long its paths: no path is handed to the
// kernel here, and how deep a walk goes is limited.
//
// Each cgroup holds dozens of files, of which a walk looks at none. It needs no
// privilege. Goroutines: it starts none and keeps nothing.
package cgroup

import (
	"bytes"
	"encoding/binary"

	"golang.org/x/sys/unix"
)

const (
	// depth is how many levels below its beginning a walk goes; each takes one
	// descriptor. What is deeper it passes over.
	depth = 128
	// bufferSize takes the files of one cgroup with all controllers.
	bufferSize = 8 << 10
)

// Entry is one cgroup.
type Entry struct {
	// At is a descriptor of the cgroup that it is in, until the call ends; Name is
	// its name there.
	At   int
	Name string
	ID   uint64
	// Path leads to it from where the walk began, with a slash in front. It may be
	// too long to be opened.
	Path string
}

// Open opens it with O_PATH.
func (e *Entry) Open() (fd int, err error) {
	return unix.Openat(e.At, e.Name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

// Walk calls see for each cgroup below the one that is open as root, a cgroup before
// those in it, until see returns an error, which Walk returns. What is gone meanwhile,
// or cannot be read, it passes over.
func Walk(root int, see func(*Entry) error) error {
	return walk(Entry{At: root, Name: "."}, depth, see)
}

// walk sees what is in one cgroup.
func walk(in Entry, levels int, see func(*Entry) error) error {
	fd, err := unix.Openat(in.At, in.Name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	buf := make([]byte, bufferSize)
	for {
		n, err := unix.Getdents(fd, buf)
		if err != nil || n <= 0 {
			return nil
		}
		for rest := buf[:n]; len(rest) > 0; {
			var name string
			if name, rest = next(rest); name == "" {
				continue
			}
			if err := descend(Entry{At: fd, Name: name, Path: in.Path + "/" + name}, levels, see); err != nil {
				return err
			}
		}
	}
}

// descend sees one cgroup, and what is below it where there is anything: a directory
// has one link more for each that it holds.
func descend(e Entry, levels int, see func(*Entry) error) error {
	var st unix.Stat_t
	if unix.Fstatat(e.At, e.Name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
		return nil
	}
	e.ID = st.Ino
	if err := see(&e); err != nil {
		return err
	}
	if st.Nlink <= 2 || levels <= 1 {
		return nil
	}
	return walk(e, levels-1, see)
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
