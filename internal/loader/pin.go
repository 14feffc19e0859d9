// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// DefaultPins is the directory of the pins where no other is asked for.
const DefaultPins = bpffsMount + "/sockhealth"

// bpffsMount is where bpffs belongs; the kernel keeps this directory for it.
const bpffsMount = "/sys/fs/bpf"

// bpffsRoot is the inode number of the root directory of a bpffs, wherever it is
// mounted (kernel-facts S23). A directory below it may be a mount point, too: of a
// container that was given no more than the pins.
const bpffsRoot = 1

// draft begins the names of pins that are about to replace others. bpffs takes no
// dots.
const draft = "new_"

// Pins is the directory on bpffs that keeps programs, links and maps when no agent
// runs. Whoever holds it keeps every other agent out.
type Pins struct {
	dir  string
	lock *os.File
}

// OpenPins opens the directory, which it makes where there is none (mode 0700),
// and takes its lock. bpffs is mounted at /sys/fs/bpf where that has none, and
// never anywhere else. The error wraps ErrHeld where another agent has the
// directory, and ErrNotPins where it is the mount point itself or has nothing but
// pins of others; it is a *MissingError where there is no bpffs.
func OpenPins(dir string) (*Pins, error) {
	dir = filepath.Clean(dir)
	if err := seeToBPFFS(dir); err != nil {
		return nil, err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("make directory of pins: %w", err)
	}
	return FindPins(dir)
}

// FindPins is OpenPins for a directory that must be there: else the error wraps
// fs.ErrNotExist. It mounts nothing.
func FindPins(dir string) (*Pins, error) {
	dir = filepath.Clean(dir)
	lock, err := lockPins(dir)
	if err != nil {
		return nil, fmt.Errorf("open directory of pins %q: %w", dir, err)
	}
	p := &Pins{dir: dir, lock: lock}
	if err := p.checkOurs(); err != nil {
		return nil, errors.Join(fmt.Errorf("open directory of pins %q: %w", dir, err), p.Close())
	}
	return p, nil
}

// checkOurs refuses a directory in which others pin, and no agent: what is there
// would be swept, or removed with the pins.
func (p *Pins) checkOurs() error {
	names, err := p.names()
	if err != nil || len(names) == 0 {
		return err
	}
	for _, name := range names {
		if slices.Contains(attachments[:], name) || name == endedName ||
			strings.HasPrefix(name, mapPrefix) || strings.HasPrefix(name, draft) {
			return nil
		}
	}
	return fmt.Errorf("%w: only others pin there, %q among them [name another with --bpffs, as %s]", ErrNotPins, names[0], DefaultPins)
}

// lockPins opens and locks the directory that has the name now: one that was
// removed meanwhile has a lock of its own.
func lockPins(dir string) (*os.File, error) {
	for {
		f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		if err != nil {
			return nil, err
		}
		if err = checkPins(f); err == nil {
			err = takeLock(f, unix.LOCK_EX)
		}
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		opened, err := f.Stat()
		if err == nil {
			var named fs.FileInfo
			if named, err = os.Stat(dir); err == nil && os.SameFile(opened, named) {
				return f, nil
			}
		}
		_ = f.Close()
		if err != nil {
			return nil, err
		}
	}
}

// checkPins refuses a directory that is not on bpffs, or that others could change.
func checkPins(f *os.File) error {
	var sys unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &sys); err != nil {
		return err
	}
	switch {
	case sys.Type == unix.BPF_FS_MAGIC:
	case f.Name() == bpffsMount: // which has none
		return mountPoint(f.Name())
	default:
		return &MissingError{
			What:   fmt.Sprintf("%q is not on bpffs", f.Name()),
			Remedy: "name the agent's directory on bpffs with --bpffs",
		}
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	switch {
	case st.Ino == bpffsRoot:
		return mountPoint(f.Name())
	case st.Mode&0o022 != 0:
		return fmt.Errorf("others may write to it, mode %04o [remove it, or choose another]", st.Mode&0o7777)
	case st.Uid != 0 && int(st.Uid) != os.Geteuid():
		return fmt.Errorf("it belongs to user %d [remove it, or choose another]", st.Uid)
	}
	return nil
}

func noBPFFS(dir string) error {
	return &MissingError{
		What:   fmt.Sprintf("%q is not on bpffs", dir),
		Remedy: "mount it above (mount -t bpf bpf " + bpffsMount + "), name a directory there with --bpffs, or run with --no-pin",
	}
}

// mountPoint says of the mount point of bpffs, which everybody on the node pins below,
// what to give instead.
func mountPoint(dir string) error {
	return fmt.Errorf("%w: it is the mount point of bpffs itself [name a directory below it: --bpffs %s]",
		ErrNotPins, filepath.Join(dir, filepath.Base(DefaultPins)))
}

// seeToBPFFS demands that a directory stands, or can be made, on bpffs.
func seeToBPFFS(dir string) error {
	above := filepath.Dir(dir)
	var sys, own unix.Statfs_t
	if err := unix.Statfs(above, &sys); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("find bpffs above %q: %w [make %s first, or name another directory with --bpffs]", dir, err, above)
	} else if err != nil {
		return fmt.Errorf("find bpffs above %q: %w", dir, err)
	}
	if sys.Type == unix.BPF_FS_MAGIC {
		return nil
	}
	if unix.Statfs(dir, &own) == nil && own.Type == unix.BPF_FS_MAGIC {
		return nil // it is mounted there itself
	}
	if dir == bpffsMount {
		return fmt.Errorf("open directory of pins %q: %w", dir, mountPoint(dir))
	}
	// What the kernel keeps for bpffs is always empty; anywhere else a mount
	// would cover what is somebody's.
	if above != bpffsMount || sys.Type != unix.SYSFS_MAGIC {
		return noBPFFS(dir)
	}
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount("bpf", bpffsMount, "bpf", flags, "mode=0700"); err != nil {
		return &MissingError{
			What:   "bpffs cannot be mounted at " + bpffsMount,
			Remedy: "mount it there (into this container: bind-mount the host's), or run with --no-pin",
			Err:    err,
		}
	}
	return nil
}

// Close lets go of the directory. What is pinned there stays.
func (p *Pins) Close() error { return p.lock.Close() }

// Dir returns the directory.
func (p *Pins) Dir() string { return p.dir }

func (p *Pins) path(name string) string { return filepath.Join(p.dir, name) }

// pinner is a link or a map.
type pinner interface{ Pin(path string) error }

// put pins an object under its name, in the place of what has that name: at every
// moment one of the two is there, whole.
func (p *Pins) put(name string, object pinner) error {
	err := object.Pin(p.path(name))
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	next := p.path(draft + name)
	if err := remove(next); err != nil {
		return fmt.Errorf("pin %s: %w", name, err)
	}
	if err := object.Pin(next); err != nil {
		return fmt.Errorf("pin %s: %w", name, err)
	}
	if err := os.Rename(next, p.path(name)); err != nil {
		return errors.Join(fmt.Errorf("pin %s: %w", name, err), remove(next))
	}
	return nil
}

// putMap is put for a map, unless that very map is pinned there already.
func (p *Pins) putMap(name string, m *ebpf.Map) error {
	if have, err := ebpf.LoadPinnedMap(p.path(name), nil); err == nil {
		same := sameMap(have, m)
		_ = have.Close()
		if same {
			return nil
		}
	}
	// The clone forgets where it was pinned, so that it is not moved from there.
	c, err := m.Clone()
	if err != nil {
		return fmt.Errorf("pin %s: %w", name, err)
	}
	defer c.Close()
	return p.put(name, c)
}

// names lists what is in the directory.
func (p *Pins) names() ([]string, error) {
	entries, err := os.ReadDir(p.dir)
	if err != nil {
		return nil, fmt.Errorf("list pins: %w", err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out, nil
}

// sweep removes what no name of keep stands for: drafts that were cut short, and
// what only another version pins. It returns the latter's names.
func (p *Pins) sweep(keep map[string]bool) (strangers []string, err error) {
	names, err := p.names()
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, name := range names {
		if keep[name] {
			continue
		}
		errs = append(errs, os.RemoveAll(p.path(name)))
		if !strings.HasPrefix(name, draft) {
			strangers = append(strangers, name)
		}
	}
	return strangers, errors.Join(errs...)
}

// Remove removes every pin and the directory, which stays where it is a mount point. Links that only a pin held are gone
// with it, so that their programs see no connection any more. It leaves the lock
// to Close.
func (p *Pins) Remove() error {
	names, err := p.names()
	if err != nil {
		return err
	}
	// The links first: no program runs without its maps' pins.
	errs := []error{p.removeLink(sockopsName), p.removeLink(setsockoptName)}
	for _, name := range names {
		errs = append(errs, os.RemoveAll(p.path(name)))
	}
	if err := remove(p.dir); !errors.Is(err, unix.EBUSY) {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove pins: %w", err)
	}
	return nil
}

// RemoveEmpty removes the directory where nothing is pinned in it, and it is no mount
// point. It leaves the lock to Close.
func (p *Pins) RemoveEmpty() error {
	err := remove(p.dir)
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EBUSY) {
		return nil
	}
	return err
}

// removeLink takes a link off its cgroup, now and not some time after, and removes
// its pin.
func (p *Pins) removeLink(name string) error {
	if l, err := link.LoadPinnedLink(p.path(name), nil); err == nil {
		err = errors.Join(l.Detach(), l.Close())
		if err != nil {
			return fmt.Errorf("detach %s: %w", name, err)
		}
	}
	return remove(p.path(name))
}

// remove removes a file or an empty directory; gone already is no error.
func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
