// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Lock keeps other agents away from a cgroup for as long as the process lives.
type Lock struct {
	f     *os.File
	above []*os.File // locked together with others', against one that works there
	// Strangers are processes that hold a lock and are no agents: they lack the
	// privileges of one. Those directories are not locked then.
	Strangers []Stranger
	// Beside are agents on cgroups beside this one, each with the nearest directory
	// that is above both. PID is 0 where theirs cannot be seen from here.
	Beside []Stranger
}

// Stranger is another process that holds the lock of a directory.
type Stranger struct {
	PID int
	Dir string
}

// LockCgroup locks a cgroup v2 directory, and keeps others from working on those
// above it. The error wraps ErrHeld where another agent has it, or one above it or
// below, wherever that one pins, and names it. The lock is one on the directory itself
// (flock(2)), so that containers which see the host's mount of cgroup v2 find each
// other, and it bars nobody from the cgroup. A nested agent locks its own alone.
func LockCgroup(path string, nested bool) (*Lock, error) {
	if err := checkCgroup(path); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, fmt.Errorf("lock cgroup: %w", err)
	}
	l := &Lock{f: f}
	if err := l.take(f, unix.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("lock cgroup %q: %w", path, err), l.Close())
	}
	if nested {
		return l, nil
	}
	if err := l.lockAbove(path); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// lockAbove locks those above: several agents may work below one cgroup, each on its
// own.
func (l *Lock) lockAbove(path string) error {
	dirs, err := upwards(path)
	if err != nil {
		return fmt.Errorf("look above cgroup %q: %w", path, err)
	}
	for _, dir := range dirs[1:] {
		f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			return fmt.Errorf("lock cgroup above: %w", err)
		}
		l.above = append(l.above, f)
		if err := l.take(f, unix.LOCK_SH); err != nil {
			return fmt.Errorf("lock cgroup %q, above %q: %w", dir, path, err)
		}
		l.noteBeside(f)
	}
	return nil
}

// noteBeside notes the agents that have locked a directory above theirs, which is
// above ours, too.
func (l *Lock) noteBeside(f *os.File) {
	for _, pid := range lockHolders(f) {
		known := slices.ContainsFunc(l.Beside, func(b Stranger) bool { return b.PID == pid })
		if pid != os.Getpid() && !known && (pid == 0 || mayBeAgent(pid)) {
			l.Beside = append(l.Beside, Stranger{PID: pid, Dir: f.Name()})
		}
	}
}

// take takes one lock, or notes the stranger who has it: whoever may open the
// directory may lock it, without any privilege.
func (l *Lock) take(f *os.File, how int) error {
	err := takeLock(f, how)
	if held := new(HeldError); errors.As(err, &held) && held.PID != 0 && !mayBeAgent(held.PID) {
		l.Strangers = append(l.Strangers, Stranger{PID: held.PID, Dir: f.Name()})
		return nil
	}
	return err
}

// Close lets go of the lock.
func (l *Lock) Close() error {
	errs := []error{l.f.Close()}
	for _, f := range l.above {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// HeldError says who holds a lock. It wraps ErrHeld.
type HeldError struct {
	PID   int       // 0: it cannot be seen from here
	Since time.Time // when that process started; zero: unknown
}

// Error names the holder.
func (e *HeldError) Error() string {
	switch {
	case e.PID == 0:
		return fmt.Sprintf("%v, whose process cannot be seen from here [stop that one first]", ErrHeld)
	case e.Since.IsZero():
		return fmt.Sprintf("%v, pid %d [stop that one first]", ErrHeld, e.PID)
	}
	return fmt.Sprintf("%v, pid %d, since %s [stop that one first]", ErrHeld, e.PID, e.Since.Format(time.RFC3339))
}

// Unwrap returns ErrHeld.
func (e *HeldError) Unwrap() error { return ErrHeld }

// takeLock locks an open file, or returns a *HeldError.
func takeLock(f *os.File, how int) error {
	err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
	if !errors.Is(err, unix.EWOULDBLOCK) {
		return err
	}
	held := &HeldError{PID: lockHolder(f)}
	if held.PID != 0 {
		held.Since = startOf(held.PID)
	}
	return held
}

// lockHolder returns the process that /proc/locks names, the first of several that
// may be an agent; 0 where it names none.
func lockHolder(f *os.File) int {
	holders := lockHolders(f)
	if i := slices.IndexFunc(holders, func(pid int) bool { return pid == 0 || mayBeAgent(pid) }); i >= 0 {
		return holders[i]
	}
	if len(holders) > 0 {
		return holders[0]
	}
	return 0
}

// lockHolders returns all that /proc/locks names; 0: one that cannot be seen from here.
func lockHolders(f *os.File) []int {
	var st unix.Stat_t
	locks, err := os.ReadFile("/proc/locks")
	if err != nil || unix.Fstat(int(f.Fd()), &st) != nil {
		return nil
	}
	return lockedBy(string(locks), fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino))
}

// lockedBy finds who has a lock by flock(2), in the format of /proc/locks:
// "1: FLOCK  ADVISORY  WRITE 1234 00:1c:5678 0 EOF", and "1: -> FLOCK ..." for
// one that waits.
func lockedBy(locks, file string) (holders []int) {
	for line := range strings.Lines(locks) {
		f := strings.Fields(line)
		if len(f) > 5 && f[1] == "FLOCK" && f[5] == file {
			pid, _ := strconv.Atoi(f[4])
			holders = append(holders, max(pid, 0)) // 0: it cannot be seen from here
		}
	}
	return holders
}

// startOf returns when a process started.
func startOf(pid int) time.Time {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return time.Time{}
	}
	started, ok := startTicks(string(stat))
	if !ok {
		return time.Time{}
	}
	const userHZ = 100 // the unit of /proc, on every architecture that Go knows
	age := boottime() - started*time.Second/userHZ
	return time.Now().Add(-age).Truncate(time.Second)
}

// startTicks reads field 22 of /proc/PID/stat. The name in field 2 may hold
// anything, a closing bracket too.
func startTicks(stat string) (time.Duration, bool) {
	rest := stat[strings.LastIndexByte(stat, ')')+1:]
	f := strings.Fields(rest)
	const field = 22 - 3 // what follows the name begins with field 3
	if len(f) <= field {
		return 0, false
	}
	n, err := strconv.ParseInt(f[field], 10, 64)
	return time.Duration(n), err == nil
}

// mayBeAgent reports whether a process could be an agent: it has what one needs,
// in our user namespace. One that cannot be read could be.
func mayBeAgent(pid int) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return true
	}
	theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/user", pid))
	if err != nil {
		return true
	}
	ours, err := os.Readlink("/proc/self/ns/user")
	return err != nil || ours == theirs && requireCapabilities(string(status)) == nil
}

// boottime returns CLOCK_BOOTTIME, which goes on during suspend.
func boottime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("clock_gettime(CLOCK_BOOTTIME): " + err.Error()) // cannot fail on Linux
	}
	return time.Duration(ts.Nano())
}
