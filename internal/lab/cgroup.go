// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cgroupTimeout bounds the wait for a cgroup's last process to be gone.
const cgroupTimeout = 10 * time.Second

// Cgroup is a cgroup v2 of this process's making.
type Cgroup struct {
	// Path is its folder below the cgroup v2 mount.
	Path string

	dir    *os.File
	origin string // cgroup.procs of the cgroup that this process was in
}

// NewCgroup makes the cgroup sockhealth-NAME-PID-N directly below the cgroup v2
// mount, and first removes empty ones of that NAME whose process is dead. name
// is one path element.
func NewCgroup(name string) (*Cgroup, error) {
	mount, err := cgroupMount()
	if err != nil {
		return nil, fmt.Errorf("make cgroup %s: %w", name, err)
	}
	origin, err := ownCgroup(mount)
	if err != nil {
		return nil, fmt.Errorf("make cgroup %s: %w", name, err)
	}
	prefix := "sockhealth-" + name + "-"
	sweep(mount.point, prefix)
	for n := 0; ; n++ {
		path := filepath.Join(mount.point, fmt.Sprintf("%s%d-%d", prefix, os.Getpid(), n))
		err := os.Mkdir(path, 0o755)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("make cgroup: %w", err)
		}
		dir, err := os.Open(path)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("make cgroup: %w", err), os.Remove(path))
		}
		return &Cgroup{Path: path, dir: dir, origin: filepath.Join(origin, "cgroup.procs")}, nil
	}
}

// FD returns a descriptor of the cgroup for syscall.SysProcAttr (UseCgroupFD,
// CgroupFD) and for attaching programs. It stays the Cgroup's own.
func (c *Cgroup) FD() int { return int(c.dir.Fd()) }

// Enter moves this whole process into the cgroup. A socket belongs to the
// cgroup in which its process was when it made the socket (kernel-facts S10).
func (c *Cgroup) Enter() error { return move(filepath.Join(c.Path, "cgroup.procs")) }

// Leave moves this whole process back to where it was when the cgroup was made.
func (c *Cgroup) Leave() error { return move(c.origin) }

func move(procs string) error {
	f, err := os.OpenFile(procs, os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString("0") // the writer itself
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return fmt.Errorf("move process to cgroup: %w", err)
	}
	return nil
}

// Close removes the cgroup, after this process has left it and all others in
// it, and in cgroups below it, have ended; it waits 10 s for that. Programs
// attached to it go with it. A second Close does nothing.
func (c *Cgroup) Close() error {
	if c.dir == nil {
		return nil // closed before
	}
	inside, err := c.holds(os.Getpid())
	if err == nil && inside {
		err = c.Leave()
	}
	if err != nil {
		return fmt.Errorf("remove cgroup: %w", err)
	}
	deadline := time.Now().Add(cgroupTimeout)
	for {
		err = removeTree(c.Path)
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	if err != nil {
		return fmt.Errorf("remove cgroup: %w", err)
	}
	dir := c.dir
	c.dir = nil
	return dir.Close()
}

// holds reports whether a process is in the cgroup itself.
func (c *Cgroup) holds(pid int) (bool, error) {
	procs, err := os.ReadFile(filepath.Join(c.Path, "cgroup.procs"))
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(procs)) {
		if strings.TrimSpace(line) == strconv.Itoa(pid) {
			return true, nil
		}
	}
	return false, nil
}

// sweep removes cgroups left over by dead processes. It is a kindness to the
// machine: what resists stays, because somebody may be in it.
func sweep(mount, prefix string) {
	old, err := filepath.Glob(filepath.Join(mount, prefix+"*"))
	if err != nil {
		return
	}
	for _, path := range old {
		rest := strings.TrimPrefix(filepath.Base(path), prefix)
		first, n, _ := strings.Cut(rest, "-")
		pid, err := strconv.Atoi(first)
		if _, nErr := strconv.Atoi(n); err != nil || nErr != nil {
			continue // a longer name that begins with ours
		}
		if errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
			_ = removeTree(path)
		}
	}
}

// removeTree removes a cgroup and those below it. Already gone is no error.
func removeTree(path string) error {
	entries, err := os.ReadDir(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeTree(filepath.Join(path, e.Name())); err != nil {
				return err
			}
		}
	}
	if err := unix.Rmdir(path); err != nil && !errors.Is(err, unix.ENOENT) {
		return &os.PathError{Op: "rmdir", Path: path, Err: err}
	}
	return nil
}
