// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The errors that callers tell apart.
var (
	// ErrUnsupported says that the running kernel lacks what a call needs.
	ErrUnsupported = errors.New("not supported by this kernel")
	// ErrClosed says that the programs were closed.
	ErrClosed = errors.New("programs are closed")
)

// MissingError says what this machine lacks to run the agent, and the remedy.
type MissingError struct {
	What   string // a clause: "the kernel has no BTF (/sys/kernel/btf/vmlinux)"
	Remedy string // an imperative: "run a kernel with CONFIG_DEBUG_INFO_BTF=y"
	Err    error  // where an error told it, else nil
}

// Error returns one sentence.
func (e *MissingError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("%s: %v (%s)", e.What, e.Err, e.Remedy)
	}
	return fmt.Sprintf("%s (%s)", e.What, e.Remedy)
}

// Unwrap returns Err.
func (e *MissingError) Unwrap() error { return e.Err }

// capability is one the agent cannot do without. SysAdmin stands for BPF and
// Perfmon on every kernel that has those.
type capability struct {
	bit  int
	name string
	why  string
}

var capabilities = [...]capability{
	{unix.CAP_BPF, "CAP_BPF", "load programs"},
	{unix.CAP_PERFMON, "CAP_PERFMON", "read sockets from programs"},
	{unix.CAP_NET_ADMIN, "CAP_NET_ADMIN", "attach to cgroups and close sockets"},
	{unix.CAP_NET_RAW, "CAP_NET_RAW", "send probes"},
	{unix.CAP_SYS_ADMIN, "CAP_SYS_ADMIN", "enter network namespaces"},
}

// Require returns nil where this process on this kernel can load the programs,
// else the first *MissingError of: kernel release, BTF, capabilities.
func Require() error {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return fmt.Errorf("ask for the kernel release: %w", err)
	}
	if err := requireRelease(unix.ByteSliceToString(u.Release[:])); err != nil {
		return err
	}
	if _, err := os.Stat("/sys/kernel/btf/vmlinux"); err != nil {
		return &MissingError{
			What:   "the kernel has no BTF (/sys/kernel/btf/vmlinux)",
			Remedy: "run a kernel built with CONFIG_DEBUG_INFO_BTF=y, as all current distributions' are",
		}
	}
	status, err := os.ReadFile("/proc/thread-self/status")
	if err != nil {
		return fmt.Errorf("read the capabilities of this process: %w", err)
	}
	return requireCapabilities(string(status))
}

// requireRelease refuses kernels before 5.10.
func requireRelease(release string) error {
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return fmt.Errorf("read kernel release %q: %w", release, err)
	}
	if major > 5 || major == 5 && minor >= 10 {
		return nil
	}
	return &MissingError{
		What:   fmt.Sprintf("kernel %s is too old", release),
		Remedy: "run Linux 5.10 or later",
	}
}

// requireCapabilities reads the effective set out of /proc/PID/status.
func requireCapabilities(status string) error {
	_, rest, ok := strings.Cut(status, "\nCapEff:")
	if !ok {
		return errors.New("read the capabilities of this process: no CapEff in /proc/thread-self/status")
	}
	line, _, _ := strings.Cut(rest, "\n")
	set, err := strconv.ParseUint(strings.TrimSpace(line), 16, 64)
	if err != nil {
		return fmt.Errorf("read the capabilities of this process: %w", err)
	}
	var names, why []string
	for _, c := range capabilities {
		if set&(1<<c.bit) == 0 {
			names = append(names, c.name)
			why = append(why, c.why)
		}
	}
	if len(names) == 0 {
		return nil
	}
	return &MissingError{
		What:   fmt.Sprintf("%s missing, needed to %s", strings.Join(names, ", "), strings.Join(why, ", ")),
		Remedy: "run as root, or grant them",
	}
}
