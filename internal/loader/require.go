// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/kernel"
)

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
	if _, err := requireKernel(); err != nil {
		return err
	}
	if err := requireBTF(); err != nil {
		return err
	}
	status, err := threadStatus()
	if err != nil {
		return err
	}
	return requireCapabilities(status)
}

// Requirement is one of the things without which nothing loads.
type Requirement struct {
	Name string // "kernel", "btf", or that of a capability
	Have string // what there is, where it is there
	Err  error  // a *MissingError where it is not; nil where it is
}

// Requirements looks at each thing that Require demands.
func Requirements() []Requirement {
	release, err := requireKernel()
	out := []Requirement{
		{Name: "kernel", Have: release, Err: err},
		{Name: "btf", Have: btfPath, Err: requireBTF()},
	}
	var set uint64
	status, err := threadStatus()
	if err == nil {
		set, err = effectiveOf(status)
	}
	for _, c := range capabilities {
		one := Requirement{Name: c.name, Have: "to " + c.why, Err: err}
		if err == nil && set&(1<<c.bit) == 0 {
			one.Err = &MissingError{What: "needed to " + c.why, Remedy: "run as root, or grant it"}
		}
		out = append(out, one)
	}
	return out
}

// requireKernel returns the kernel's release, and refuses those before the floor.
func requireKernel() (string, error) {
	release, name, err := kernel.Running()
	if err != nil {
		return name, err
	}
	return name, requireRelease(release, name)
}

// requireRelease refuses kernels before the floor.
func requireRelease(release kernel.Release, name string) error {
	if !release.Before(kernel.Floor()) {
		return nil
	}
	return &MissingError{
		What:   fmt.Sprintf("kernel %s is too old", name),
		Remedy: fmt.Sprintf("run Linux %s or later", kernel.Floor()),
	}
}

const btfPath = "/sys/kernel/btf/vmlinux"

func requireBTF() error {
	if _, err := os.Stat(btfPath); err != nil {
		return &MissingError{
			What:   "the kernel has no BTF (" + btfPath + ")",
			Remedy: "run a kernel built with CONFIG_DEBUG_INFO_BTF=y, as all current distributions' are",
		}
	}
	return nil
}

// threadStatus returns the calling thread's /proc/PID/status.
func threadStatus() (string, error) {
	status, err := os.ReadFile("/proc/thread-self/status")
	if err != nil {
		return "", fmt.Errorf("read the capabilities of this process: %w", err)
	}
	return string(status), nil
}

// effectiveOf reads the effective set out of /proc/PID/status.
func effectiveOf(status string) (uint64, error) {
	_, rest, ok := strings.Cut(status, "\nCapEff:")
	if !ok {
		return 0, errors.New("read the capabilities of this process: no CapEff in /proc/thread-self/status")
	}
	line, _, _ := strings.Cut(rest, "\n")
	set, err := strconv.ParseUint(strings.TrimSpace(line), 16, 64)
	if err != nil {
		return 0, fmt.Errorf("read the capabilities of this process: %w", err)
	}
	return set, nil
}

// requireCapabilities names all that /proc/PID/status says are missing.
func requireCapabilities(status string) error {
	set, err := effectiveOf(status)
	if err != nil {
		return err
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
