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
	"regexp"
	"runtime"
	"strconv"
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
	stdout   io.Writer     // the programs' output
	stderr   io.Writer     // what is to be said about the machine
	cpu      time.Duration // of qemu, once run has returned
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
	if ctx.Err() != nil {
		return guest.StatusFailed, false, context.Cause(ctx)
	}
	log, err := os.ReadFile(console)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return guest.StatusFailed, false, err
	}
	raw, err := os.ReadFile(said)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return guest.StatusFailed, false, err
	}
	status, err = conclude(string(raw), string(log), limited.Err() != nil, m.timeout)
	if err != nil && !errors.Is(limited.Err(), context.DeadlineExceeded) {
		err = errors.Join(err, qemuErr)
	}
	return status, strings.Contains(string(log), guest.Booted), err
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
		"-append", strings.TrimSpace("console=" + emu.console + " loglevel=5 panic=-1 mitigations=off highres=off nokaslr rcupdate.rcu_expedited=1 rcupdate.rcu_cpu_stall_timeout=60 " + m.append),
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

// logTail is how many lines of the kernel log an error shows.
const logTail = 40

// conclude tells how a machine ended, from what it said on its ports.
func conclude(said, log string, timedOut bool, timeout time.Duration) (int, error) {
	trouble := troubleIn(log)
	status, err := strconv.Atoi(strings.TrimSpace(said))
	if err == nil && trouble == "" && status != guest.StatusFailed {
		if why := initSaid.FindStringSubmatch(log); status == guest.StatusNoStart && why != nil {
			return status, fmt.Errorf("the program could not be started: %s", why[1])
		}
		return status, nil
	}
	var what string
	switch {
	case trouble != "":
		status, what = guest.StatusFailed, "the kernel said "+strconv.Quote(trouble)
	case err == nil:
		what = "the machine could not run the program"
	case timedOut:
		status, what = guest.StatusTimeout, fmt.Sprintf("the machine was ended after %s", timeout)
	default:
		status, what = guest.StatusFailed, "the machine ended without a status"
	}
	return status, fmt.Errorf("%s; kernel log:\n%s", what, tail(log, logTail))
}

// initSaid is what the first process says of a program that does not start.
var initSaid = regexp.MustCompile(`init: ((?:fork/exec|exec|chdir) .*)`)

// trouble is what a kernel says when it has a fault.
var trouble = regexp.MustCompile(`Kernel panic|BUG: |Oops|general protection fault|KASAN|` +
	`WARNING: (CPU|\S+\.[chS]:\d+)|blocked for more than|rcu: INFO: .* stall|unregister_netdevice: waiting`)

// troubleIn returns the first line of a kernel log that tells of a fault of the
// kernel, "" without one.
func troubleIn(log string) string {
	for line := range strings.Lines(log) {
		if trouble.MatchString(line) {
			return strings.TrimSpace(line)
		}
	}
	return ""
}

// tail returns the last n lines.
func tail(text string, n int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
