// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Foreign is a program of somebody else's that is attached where ours are, or above.
type Foreign struct {
	Kind   string // sockops or setsockopt, as ours are called
	ID     ebpf.ProgramID
	Name   string // "" where its owner gave none
	Cgroup string // the directory that it is attached to
	// Shares says that it was attached to run beside others (BPF_F_ALLOW_MULTI).
	Shares bool
	// Yields says that it gives way to one that is attached below it
	// (BPF_F_ALLOW_OVERRIDE).
	Yields bool
	// Here says that it is at the cgroup asked about, and not above.
	Here bool
	// Passed says that the kernel does not ask it whether ours may be attached: it is
	// above the nearest that is asked, or ours are attached already, and it came later.
	Passed bool
}

// Bars reports whether ours cannot be attached because of it.
func (f *Foreign) Bars() bool { return !f.Shares && !f.Passed && (f.Here || !f.Yields) }

// Silenced reports whether it does not run for the sockets of our cgroup once ours
// are attached there.
func (f *Foreign) Silenced() bool { return !f.Shares && !f.Here }

// String names it: sockops program 12 ("name") at "/sys/fs/cgroup".
func (f *Foreign) String() string {
	name := ""
	if f.Name != "" {
		name = fmt.Sprintf(" (%q)", f.Name)
	}
	return fmt.Sprintf("%s program %d%s at %q", f.Kind, f.ID, name, f.Cgroup)
}

// Conflict returns a *MissingError where the program and ours do not go together at
// this cgroup, with what helps.
func (f *Foreign) Conflict(cgroup string) error {
	switch {
	case f.Bars():
		return &MissingError{
			What: fmt.Sprintf("cgroup %q takes no %s program of ours: the %s allows no other", cgroup, f.Kind, f), Remedy: f.remedy(),
		}
	case f.Silenced():
		return &MissingError{
			What:   fmt.Sprintf("the %s does not run for sockets in cgroup %q, where ours take its place", f, cgroup),
			Remedy: "have its owner attach it with BPF_F_ALLOW_MULTI",
		}
	}
	return nil
}

// remedy says what helps where it bars ours.
func (f *Foreign) remedy() string {
	kind := map[string]string{sockopsName: "sock_ops", setsockoptName: "setsockopt"}[f.Kind]
	return fmt.Sprintf("have its owner attach it with BPF_F_ALLOW_MULTI, or take it off (bpftool cgroup detach %s %s id %d), or run on a cgroup outside (--cgroup)",
		f.Cgroup, kind, f.ID)
}

// Around returns the sockops and setsockopt programs that are not ours at a cgroup
// and above it, the nearest first. In a container it sees no further than the mount
// that the path is on.
func Around(cgroup string) ([]Foreign, error) {
	dirs, err := upwards(cgroup)
	if err != nil {
		return nil, fmt.Errorf("look above cgroup %q: %w", cgroup, err)
	}
	var out []Foreign
	passed := make(map[string]bool) // by kind, as hierarchy_allows_attach() goes
	for i, dir := range dirs {
		here, err := foreignAt(dir, i == 0, passed)
		if err != nil {
			return nil, err
		}
		out = append(out, here...)
	}
	return out, nil
}

// foreignAt returns those that are attached to one cgroup: here, or above it. passed
// says of which kinds the kernel looked no further, and is brought up to date.
func foreignAt(path string, here bool, passed map[string]bool) (out []Foreign, err error) {
	dir, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("look for programs at cgroup %q: %w", path, err)
	}
	defer dir.Close()
	for _, a := range at(nil, nil) {
		ids, flags, err := attachedTo(int(dir.Fd()), a.typ, 0)
		if err != nil {
			return nil, fmt.Errorf("ask for the %s programs at cgroup %q: %w", a.name, path, err)
		}
		shares, before := flags&unix.BPF_F_ALLOW_MULTI != 0, len(out)
		for _, id := range ids {
			if name, foreign := foreignName(id); foreign {
				out = append(out, Foreign{
					Kind: a.name, ID: id, Name: name, Cgroup: path, Here: here, Passed: passed[a.name],
					Shares: shares, Yields: flags&unix.BPF_F_ALLOW_OVERRIDE != 0,
				})
			}
		}
		switch ours := len(ids) > len(out)-before; {
		case here:
			passed[a.name] = ours
		case shares || len(ids) > 0:
			passed[a.name] = true
		}
	}
	return out, nil
}

// barrier returns the first that keeps ours of a kind from a cgroup, nil where none
// can be seen. Above one that shares nothing bars: the kernel did not let it.
func barrier(kind, cgroup string) *Foreign {
	around, err := Around(cgroup)
	if err != nil {
		return nil
	}
	for i := range around {
		f := &around[i]
		if f.Kind == kind && f.Bars() {
			return f
		}
	}
	return nil
}

// upwards returns a cgroup's directory and those above it on the same mount.
func upwards(cgroup string) ([]string, error) {
	dir, err := filepath.Abs(cgroup)
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return nil, err
	}
	var first, st unix.Stat_t
	if err := unix.Stat(dir, &first); err != nil {
		return nil, err
	}
	out := []string{dir}
	for parent := filepath.Dir(dir); parent != dir; dir, parent = parent, filepath.Dir(parent) {
		if unix.Stat(parent, &st) != nil || st.Dev != first.Dev {
			break
		}
		out = append(out, parent)
	}
	return out, nil
}

// progQuery is union bpf_attr of BPF_PROG_QUERY. It has room for the last field that
// any kernel writes, the revision: newer ones do so whatever size they are told.
type progQuery struct {
	target, typ, queryFlags, attachFlags uint32
	ids                                  unsafe.Pointer
	count, pad                           uint32
	// Left at 0: not every kernel knows them.
	attachFlagsOf, linkIDs, linkFlags, revision uint64
}

func (q *progQuery) ask() unix.Errno {
	_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_QUERY, uintptr(unsafe.Pointer(q)), unsafe.Sizeof(*q))
	return errno
}

// attachedTo returns the programs of a type that are attached to a cgroup itself,
// and how: BPF_F_ALLOW_MULTI, BPF_F_ALLOW_OVERRIDE, or neither. With
// BPF_F_QUERY_EFFECTIVE it returns those that run for its sockets, and not how.
func attachedTo(fd int, typ ebpf.AttachType, query uint32) (ids []ebpf.ProgramID, flags uint32, err error) {
	for n := 64; ; n *= 2 {
		ids = make([]ebpf.ProgramID, n)
		attr := progQuery{
			target: uint32(fd), typ: uint32(typ), queryFlags: query, ids: unsafe.Pointer(&ids[0]), count: uint32(n),
		}
		errno := attr.ask()
		if errno == unix.ENOSPC {
			continue
		}
		if errno != 0 {
			return nil, 0, errno
		}
		return ids[:attr.count], attr.attachFlags, nil
	}
}

// programName returns the name of a program; not ok: it is gone.
func programName(id ebpf.ProgramID) (string, bool) {
	prog, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return "", !errors.Is(err, os.ErrNotExist)
	}
	defer prog.Close()
	info, err := prog.Info()
	if err != nil {
		return "", true
	}
	return info.Name, true
}
