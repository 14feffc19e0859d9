// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/test/vm/guest"
)

// program is a static binary to run, and how.
type program struct {
	path   string
	beside []string // files that it finds in its own folder
	// installed are files of this machine that it finds at the same place.
	installed []string
	args      []string
	dir       string // its working directory
	// finds says that exit status 1 is no fault: guest.Program.Finds.
	finds bool
}

// machine is one virtual machine and what runs in it, one after the other.
type machine struct {
	kernel   *installed
	tmp      string // the machine's own folder is made here
	init     string // the first process's binary
	programs []program
	env      []string
	without  []string
	append   string // to the kernel's command line
	timeout  time.Duration
	stdout   io.Writer // the programs' output
	stderr   io.Writer // what is to be said about the machine

	// Once run has returned:
	cpu time.Duration // of qemu
	log string        // the kernel's, of the last start
}

// emulator is how qemu is called for an architecture, and the devices that its
// ports are inside the guest.
type emulator struct {
	binary  string
	args    []string
	console string // of the kernel log
	output  string
	status  string
	// ports are the arguments that make the ports for output and status, of the
	// chardevs out and status.
	ports []string
}

var emulators = map[string]emulator{
	"amd64": {
		binary: "qemu-system-x86_64", args: []string{"-machine", "q35", "-cpu", "qemu64"},
		console: "ttyS0", output: "/dev/ttyS1", status: "/dev/ttyS2",
		ports: []string{"-serial", "chardev:out", "-serial", "chardev:status"},
	},
	"arm64": {
		binary: "qemu-system-aarch64", args: []string{"-machine", "virt", "-cpu", "cortex-a72"},
		console: "ttyAMA0", output: "/dev/ttyS0", status: "/dev/ttyS1",
		ports: []string{"-device", "pci-serial,chardev=out", "-device", "pci-serial,chardev=status"},
	},
}

// run boots the machine and returns the program's exit status, or one of the
// guest's own with the reason in the error.
func (m *machine) run(ctx context.Context) (status int, err error) {
	tmp, err := os.MkdirTemp(m.tmp, "machine-")
	if err != nil {
		return guest.StatusFailed, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	emu := emulators[m.kernel.arch]
	image, err := m.image(ctx, tmp, &emu)
	if err != nil {
		return guest.StatusFailed, err
	}
	limited, cancel := context.WithTimeout(ctx, m.timeout)
	defer cancel()
	for n := 1; ; n++ {
		var booted bool
		status, booted, err = m.boot(ctx, limited, &emu, image, tmp)
		// Emulated processors now and then trip over code that another patches
		// while the kernel boots; nothing of ours has run then.
		if booted || n == boots || limited.Err() != nil {
			return status, err
		}
	}
}

// boots is how often a machine is started that does not come up.
const boots = 3

// boot starts the machine once; booted says whether it came as far as to run the
// program.
func (m *machine) boot(ctx, limited context.Context, emu *emulator, image, tmp string) (status int, booted bool, err error) {
	console, said := filepath.Join(tmp, "console"), filepath.Join(tmp, "status")
	for _, left := range []string{console, said} {
		if err := os.Remove(left); err != nil && !errors.Is(err, os.ErrNotExist) {
			return guest.StatusFailed, false, err
		}
	}
	qemuErr := m.qemu(limited, emu, image, console, said)
	log, err := os.ReadFile(console)
	m.log = string(log)
	if ctx.Err() != nil {
		return guest.StatusFailed, false, context.Cause(ctx)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return guest.StatusFailed, false, err
	}
	raw, err := os.ReadFile(said)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return guest.StatusFailed, false, err
	}
	status, err = conclude(string(raw), m.log, limited.Err() != nil, m.timeout)
	if err != nil && !errors.Is(limited.Err(), context.DeadlineExceeded) {
		err = errors.Join(err, qemuErr)
	}
	return status, strings.Contains(m.log, guest.Booted), err
}

// image makes the machine's initial file system.
func (m *machine) image(ctx context.Context, tmp string, emu *emulator) (string, error) {
	spec := &guest.Spec{Env: m.env, Without: m.without, Output: emu.output, Status: emu.status}
	for _, p := range m.programs {
		spec.Programs = append(spec.Programs, guest.Program{
			Args: append([]string{inGuest(p.path)}, p.args...), Dir: p.dir, Finds: p.finds,
		})
	}
	base, err := m.kernel.base(ctx, tmp)
	if err != nil {
		return "", err
	}
	over, err := overlay(ctx, tmp, m.init, m.programs, spec)
	if err != nil {
		return "", err
	}
	path := filepath.Join(tmp, "initramfs")
	return path, concat(path, base, over)
}

// qemu runs until the machine ends. Should this process be killed, the kernel
// kills the machine.
func (m *machine) qemu(ctx context.Context, emu *emulator, image, console, status string) error {
	runtime.LockOSThread() // the parent, to the kernel, is the thread
	defer runtime.UnlockOSThread()
	// What is emulated at great cost is left out: timers between the clock's ticks,
	// each of which is an interrupt controller's work, and the mitigations. A busy
	// machine may leave an emulated processor alone for longer than a kernel expects.
	args := append([]string{
		"-nodefaults", "-no-reboot", "-display", "none", "-accel", "tcg,thread=multi", "-smp", "1", "-m", "1G",
		"-kernel", m.kernel.image, "-initrd", image,
		"-append", strings.TrimSpace("console=" + emu.console + " loglevel=5 panic=-1 mitigations=off highres=off nokaslr rcupdate.rcu_expedited=1 rcupdate.rcu_cpu_stall_timeout=60 " + endOf(ctx) + " " + m.append),
		"-serial", "file:" + console,
		"-chardev", "stdio,id=out,signal=off", "-chardev", "file,id=status,path=" + status,
	}, emu.args...)
	cmd := exec.CommandContext(ctx, emu.binary, append(args, emu.ports...)...)
	// Pipes, whatever our own are: qemu makes its output non-blocking, for all who
	// share it, and once it is killed it does not undo that.
	cmd.Stdout, cmd.Stderr = piped{m.stdout}, piped{m.stderr}
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL, Setpgid: true}
	err := cmd.Run()
	if p := cmd.ProcessState; p != nil {
		m.cpu += p.UserTime() + p.SystemTime()
	}
	if err != nil {
		return fmt.Errorf("%s: %w", emu.binary, err)
	}
	return nil
}

// piped is a writer that a command is never given as the file that it may be.
type piped struct{ io.Writer }

// grace is how long before a machine's end its program is asked for its stacks.
const grace = 30 * time.Second

// endOf tells the guest, on the kernel's command line, when to be done: grace before
// the context's deadline, which it must have, or a quarter of the time where that is less.
func endOf(ctx context.Context) string {
	deadline, _ := ctx.Deadline()
	left := time.Until(deadline)
	return fmt.Sprintf("%s=%.0f", guest.Seconds, max(1, (left-min(grace, left/4)).Seconds()))
}
