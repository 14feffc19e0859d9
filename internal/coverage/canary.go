// SPDX-License-Identifier: Apache-2.0

package coverage

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/netns"
)

// ErrSilent says that the programs left a canary as it was.
var ErrSilent = errors.New("the programs did not act")

// CanaryCommand is the subcommand of this program that is the canary's process.
const CanaryCommand = "canary"

const (
	// canaryWithin is how long a canary may take.
	canaryWithin = 30 * time.Second
	// canaryCgroup is the name of the cgroup that a canary is put into where the
	// programs' own takes no process. There is one agent a cgroup.
	canaryCgroup = "sockhealth-canary"
	// removeWithin is how long the kernel may take until the canary's cgroup can be
	// removed after the process has ended.
	removeWithin = 2 * time.Second
)

// SendCanary has a process of this program open a connection to itself in the
// programs' cgroup, in a network namespace of its own, and compares what is set on
// both ends with what the programs ought to have set. The error wraps ErrSilent
// where they did not; with any other there was no connection to see.
func SendCanary(ctx context.Context, cgroup string) error {
	ctx, cancel := context.WithTimeout(ctx, canaryWithin)
	defer cancel()
	saw, err := canary(ctx, cgroup)
	if err != nil {
		return fmt.Errorf("send a canary connection: %w", err)
	}
	return saw.judge()
}

// canarySaw is what the canary's process read back.
type canarySaw struct {
	Outbound, Inbound conn.Options
	// Held are the outbound end's after it was asked for looser ones.
	Held conn.Options
}

// judge compares it with what ought to be there.
func (s *canarySaw) judge() error {
	want := loader.CanaryOptions()
	for _, one := range []struct {
		what string
		got  conn.Options
	}{
		{"sockops did not bound an outbound connection", s.Outbound},
		{"sockops did not bound an inbound connection", s.Inbound},
		{"setsockopt did not hold the bound", s.Held},
	} {
		if one.got != want {
			return fmt.Errorf("%w: %s: it has %+v, want %+v", ErrSilent, one.what, one.got, want)
		}
	}
	return nil
}

// canary runs the process and returns what it saw.
func canary(ctx context.Context, cgroup string) (saw canarySaw, err error) {
	ns, err := netns.New()
	if err != nil {
		return saw, err
	}
	defer ns.Close()
	// The file that runs, also where an upgrade has replaced it.
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Args = []string{"sockhealth", CanaryCommand}
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	cmd.WaitDelay = canaryWithin
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	ready, err := cmd.StdinPipe()
	if err != nil {
		return saw, err
	}
	if err := ns.Do(cmd.Start); err != nil {
		return saw, err
	}
	// What counts is the cgroup at the moment the socket is made (kernel-facts
	// S10): the process waits for the end of its input.
	remove, err := place(cmd.Process.Pid, cgroup)
	if err != nil {
		_ = cmd.Process.Kill()
	}
	_ = ready.Close()
	werr := cmd.Wait()
	if err == nil && werr != nil {
		err = fmt.Errorf("%w: %s", werr, bytes.TrimSpace(stderr.Bytes()))
	}
	if err = errors.Join(err, remove()); err != nil {
		return saw, err
	}
	if err := json.Unmarshal(stdout.Bytes(), &saw); err != nil {
		return saw, fmt.Errorf("read what the canary saw: %w", err)
	}
	return saw, nil
}

// place moves a process into a cgroup, or into one made below it where it takes
// none itself: one that gives domain controllers on. remove undoes what it made,
// once the process has ended; it is never nil.
//
// A process that is not moved stays in this one's cgroup, which is below the root
// of the hierarchy in any case.
func place(pid int, cgroup string) (remove func() error, err error) {
	remove = func() error { return nil }
	var st unix.Stat_t
	if err := unix.Stat(cgroup, &st); err != nil {
		return remove, &fs.PathError{Op: "stat", Path: cgroup, Err: err}
	}
	if st.Ino == hierarchyRoot {
		return remove, nil
	}
	err = move(pid, cgroup)
	if !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.EOPNOTSUPP) {
		return remove, err
	}
	below := filepath.Join(cgroup, canaryCgroup)
	if err := os.Mkdir(below, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return remove, err
	}
	return func() error { return removeCgroup(below) }, move(pid, below)
}

// move moves a process into a cgroup.
func move(pid int, cgroup string) error {
	f, err := os.OpenFile(filepath.Join(cgroup, "cgroup.procs"), os.O_WRONLY, 0)
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w [run as root, or grant CAP_DAC_OVERRIDE: a process is moved into --cgroup]", err)
	}
	if err != nil {
		return err
	}
	_, err = f.WriteString(strconv.Itoa(pid))
	return errors.Join(err, f.Close())
}

// removeCgroup removes a cgroup whose last process has just ended.
func removeCgroup(path string) error {
	for began := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		err := unix.Rmdir(path)
		if !errors.Is(err, unix.EBUSY) || time.Since(began) > removeWithin {
			if err != nil {
				err = &fs.PathError{Op: "rmdir", Path: path, Err: err}
			}
			return err
		}
	}
}
