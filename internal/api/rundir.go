// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Names in the run directory.
const (
	ReportSocket = "report.sock" // a link to the socket in ReportDir
	AdminSocket  = "admin.sock"
	// ReportDir holds ReportSocket and nothing else: it is what a container may be
	// given. Unlike the socket it outlives the agent.
	ReportDir = "report"
	lockFile  = "lock"
)

// maxSocketPath is what fits into sockaddr_un with its closing NUL.
const maxSocketPath = 107

// RunDir is the directory of the agent's sockets, held by a lock that the
// kernel lets go of when the agent dies. One goroutine makes sockets and closes it; Check
// may be called at any time.
type RunDir struct {
	path    string
	lock    *os.File
	sockets []string // some twice, where they were made again

	mu   sync.Mutex
	ours map[string]fs.FileInfo // what the name of each socket led to when it was made
}

// OpenRunDir makes the directory (mode 0755) where there is none, and takes its
// lock. The error wraps ErrHeld where another agent has it, and names its pid.
// A directory in which other users could replace the sockets is refused.
func OpenRunDir(path string) (*RunDir, error) {
	if err := makeDir(path); err != nil {
		return nil, fmt.Errorf("open run directory %q: %w", path, err)
	}
	lock, err := os.OpenFile(filepath.Join(path, lockFile), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open run directory %q: %w", path, err)
	}
	if err := hold(lock); err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("lock run directory %q: %w", path, err)
	}
	return &RunDir{path: path, lock: lock}, nil
}

// makeDir sees to a directory that only its owner writes to.
func makeDir(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	err := os.Mkdir(path, 0o755)
	if err == nil {
		return os.Chmod(path, 0o755) // whatever the umask
	}
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return err
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return unix.ENOTDIR
	case st.Mode&0o022 != 0:
		return fmt.Errorf("others may write to it, mode %04o [chmod 0755 it, or choose another]", st.Mode&0o7777)
	case st.Uid != 0 && int(st.Uid) != os.Geteuid():
		return fmt.Errorf("it belongs to user %d [chown it to root, or choose another]", st.Uid)
	}
	return nil
}

// hold takes the lock and writes the pid.
func hold(lock *os.File) error {
	err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("%w, pid %s [stop that one, or choose another --run-dir]", ErrHeld, holder(lock))
	}
	if err != nil {
		return err
	}
	if err := lock.Truncate(0); err != nil {
		return err
	}
	_, err = lock.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

// holder returns the pid in a lock file that another agent holds.
func holder(lock *os.File) string {
	b, _ := io.ReadAll(io.LimitReader(lock, 32))
	if pid := strings.TrimSpace(string(b)); pid != "" {
		return pid
	}
	return "unknown"
}

// Path returns the directory.
func (d *RunDir) Path() string { return d.path }

// Listen makes a Unix socket in the directory, in the place of what a dead
// agent left. It has its mode before anybody can connect, and is there or not,
// never half. Closing the listener leaves the file to Close.
func (d *RunDir) Listen(name string, mode fs.FileMode) (*net.UnixListener, error) {
	path := filepath.Join(d.path, name)
	// The draft stands where nobody else may write.
	l, err := listen(path, filepath.Join(d.path, filepath.Base(name)+".new"), mode)
	if err != nil {
		return nil, fmt.Errorf("listen on %q: %w", path, err)
	}
	d.sockets = append(d.sockets, path)
	return l, nil
}

// ListenAdmin makes the admin socket, which root may connect to.
func (d *RunDir) ListenAdmin() (*net.UnixListener, error) {
	l, err := d.Listen(AdminSocket, 0o600)
	if err != nil {
		return nil, err
	}
	if err := d.own(AdminSocket); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// ListenReports makes the report socket, which anybody may connect to, in ReportDir, and
// the link to it.
func (d *RunDir) ListenReports() (*net.UnixListener, error) {
	link, inner := filepath.Join(d.path, ReportSocket), filepath.Join(ReportDir, ReportSocket)
	dir := filepath.Join(d.path, ReportDir)
	if err := takeBack(dir); err != nil {
		return nil, fmt.Errorf("open report directory %q: %w", dir, err)
	}
	l, err := d.Listen(inner, 0o666)
	if err != nil {
		return nil, err
	}
	if err := relink(inner, link); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("link %q to %q: %w", link, inner, err)
	}
	d.sockets = append(d.sockets, link)
	if err := d.own(ReportSocket); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// takeBack makes the report directory, or makes it as it should be: root of a container that
// can write to it may have put something else in the place of the socket, or given it another
// mode.
func takeBack(dir string) error {
	_ = os.Chmod(dir, 0o755) // where that does not help makeDir says why
	if err := makeDir(dir); err != nil {
		return err
	}
	path := filepath.Join(dir, ReportSocket)
	st, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && st.Mode().Type() == fs.ModeSocket {
		return nil
	}
	return errors.Join(err, os.RemoveAll(path))
}

// relink makes the link, in the place of one that a dead agent left, or of a socket, which
// an older one did.
func relink(to, path string) error {
	draft := path + ".new"
	for _, p := range []string{path, draft} {
		st, err := os.Lstat(p)
		if err == nil && st.Mode().Type() != fs.ModeSocket && st.Mode().Type() != fs.ModeSymlink {
			return fmt.Errorf("%q is in the way and no socket [remove it]", p)
		}
	}
	if err := os.Remove(draft); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(to, draft); err != nil {
		return err
	}
	if err := os.Rename(draft, path); err != nil {
		_ = os.Remove(draft)
		return err
	}
	return nil
}

func listen(path, draft string, mode fs.FileMode) (_ *net.UnixListener, err error) {
	if len(path) > maxSocketPath || len(draft) > maxSocketPath {
		return nil, fmt.Errorf("path of %d bytes, a Unix socket's may have %d [choose a shorter --run-dir]",
			len(path), maxSocketPath-len(".new"))
	}
	for _, p := range []string{path, draft} {
		if st, err := os.Lstat(p); err == nil && st.Mode().Type() != fs.ModeSocket {
			return nil, fmt.Errorf("%q is in the way and no socket [remove it]", p)
		}
	}
	if err := os.Remove(draft); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: draft, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // it would remove the draft's name
	if err = os.Chmod(draft, mode); err == nil {
		err = os.Rename(draft, path)
	}
	if err != nil {
		_ = l.Close()
		_ = os.Remove(draft)
		return nil, err
	}
	return l, nil
}

// Close removes the sockets and lets go of the lock. The directories and the lock
// file stay: removing a lock file is a race with who is about to take it, and what a
// container has mounted is to hold the next agent's socket too.
func (d *RunDir) Close() error {
	var errs []error
	for _, path := range d.sockets {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	d.sockets = nil
	errs = append(errs, d.lock.Truncate(0), d.lock.Close())
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close run directory %q: %w", d.path, err)
	}
	return nil
}
