// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// List returns a handle of every namespace that can be seen, each once, in the
// order of their inode numbers: those of the processes in /proc (all of the
// node's where the process id namespace is the host's), those that ip-netns(8)
// and Docker have named, and the calling thread's. A namespace that only a
// socket, a descriptor or a thread other than a process's first keeps alive is
// not seen. The caller closes the handles.
//
// A process that exits meanwhile is no error. Where some may not be looked at
// (CAP_SYS_PTRACE is missing, or a security module objects), List returns all
// the others beside an error that wraps ErrPermission; with any other error it
// returns none.
func List() ([]*NS, error) {
	return list("/proc", "/run/netns", "/var/run/docker/netns")
}

func list(proc string, named ...string) ([]*NS, error) {
	l := lister{seen: make(map[uint32]bool)}
	err := l.current()
	if err == nil {
		err = l.processes(proc)
	}
	for _, dir := range named {
		if err == nil {
			err = l.named(dir)
		}
	}
	if err != nil {
		for _, ns := range l.found {
			_ = ns.Close()
		}
		return nil, fmt.Errorf("list network namespaces: %w", err)
	}
	slices.SortFunc(l.found, func(a, b *NS) int { return int(int64(a.inode) - int64(b.inode)) })
	if err := Denied(l.denied); err != nil {
		return l.found, fmt.Errorf("list network namespaces: %w", err)
	}
	return l.found, nil
}

// lister collects namespaces, each once.
type lister struct {
	found  []*NS
	seen   map[uint32]bool // by inode
	dev    uint64          // the device of all namespaces' inodes
	denied Refusals        // what may not be looked at
}

// current adds the calling thread's namespace.
func (l *lister) current() error {
	here, err := Current()
	if err != nil {
		return err
	}
	l.add(here)
	var st unix.Stat_t
	err = here.control(func(fd int) error { return unix.Fstat(fd, &st) })
	l.dev = st.Dev
	return err
}

func (l *lister) add(ns *NS) {
	if l.seen[ns.inode] {
		_ = ns.Close() // the path came to name another one after the stat
		return
	}
	l.seen[ns.inode] = true
	l.found = append(l.found, ns)
}

// look adds the namespace at path unless it is known already: a stat is cheaper
// than an open, and most processes share a namespace.
func (l *lister) look(path string) error {
	var st unix.Stat_t
	err := unix.Stat(path, &st)
	if err == nil && st.Dev == l.dev && l.seen[uint32(st.Ino)] {
		return nil
	}
	var ns *NS
	if err == nil {
		ns, err = Open(path)
	}
	switch {
	case err == nil:
		l.add(ns)
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		// proc_ns_get_link says EACCES too where the process has exited since
		// its directory was found.
		if unix.Access(filepath.Dir(path), unix.F_OK) == nil {
			l.denied.Add(path)
		}
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ESRCH), errors.Is(err, ErrNotNetns):
		// The process has exited, or the name is that of a mount point whose
		// namespace is gone.
	default:
		return err
	}
	return nil
}

func (l *lister) processes(proc string) error {
	dir, err := os.Open(proc)
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		if name[0] < '1' || name[0] > '9' {
			continue
		}
		if err := l.look(filepath.Join(proc, name, "ns/net")); err != nil {
			return err
		}
	}
	return nil
}

func (l *lister) named(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if errors.Is(err, fs.ErrPermission) {
		l.denied.Add(dir)
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := l.look(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}
