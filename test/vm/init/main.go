// SPDX-License-Identifier: Apache-2.0

// Command init is the first process of a virtual machine: it makes a minimal
// userland, runs the program of its guest.Spec, passes on its output and exit
// status, and ends the machine. Its own messages go to the kernel log.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/test/vm/guest"
)

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "init: not the first process of a machine")
		os.Exit(2)
	}
	code := guest.StatusFailed
	spec, err := prepare()
	var end time.Time
	if err == nil {
		end, err = endOf(os.Getenv(guest.Seconds))
	}
	if err == nil {
		logf("booted")
		code, err = runAll(spec, end)
	}
	if err != nil {
		logf("%v", err)
	}
	if err := report(spec, code); err != nil {
		logf("%v", err)
	}
	// A restart ends the machine on every type of machine, with or without ACPI.
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART); err != nil {
		logf("restart: %v", err)
	}
	select {}
}

// logf adds a line to the kernel log.
func logf(format string, args ...any) {
	_ = os.WriteFile("/dev/kmsg", fmt.Appendf(nil, "<3>init: "+format+"\n", args...), 0)
}

// prepare makes the userland and reads what to run in it.
func prepare() (*guest.Spec, error) {
	spec := new(guest.Spec)
	raw, err := os.ReadFile(guest.SpecPath)
	if err != nil {
		return spec, err
	}
	if err := json.Unmarshal(raw, spec); err != nil {
		return spec, fmt.Errorf("read %s: %w", guest.SpecPath, err)
	}
	if err := mountAll(); err != nil {
		return spec, err
	}
	if err := giveControllers(); err != nil {
		return spec, err
	}
	for name, value := range map[string]string{"PATH": "/bin:/sbin:/usr/bin:/usr/sbin", "HOME": "/tmp", "TMPDIR": "/tmp", "SOCKHEALTH_VM": "1"} {
		if err := os.Setenv(name, value); err != nil {
			return spec, err
		}
	}
	if out, err := exec.Command("/bin/busybox", "--install", "-s").CombinedOutput(); err != nil {
		return spec, fmt.Errorf("install the tools: %w: %s", err, out)
	}
	for _, m := range spec.Without {
		if err := takeAway(m); err != nil {
			return spec, err
		}
	}
	if out, err := exec.Command("/sbin/ifconfig", "lo", "up").CombinedOutput(); err != nil {
		return spec, fmt.Errorf("bring up lo: %w: %s", err, out)
	}
	return spec, nil
}

// takeAway removes a module, so that the kernel does not find it.
func takeAway(module string) error {
	found, err := filepath.Glob("/lib/modules/*/" + module + ".ko")
	if err != nil {
		return err
	}
	if len(found) == 0 {
		return fmt.Errorf("take away module %q: there is none", module)
	}
	for _, f := range found {
		if err := os.Remove(f); err != nil {
			return err
		}
	}
	return nil
}

// runAll runs the programs until end, and returns the first exit status that is not 0.
func runAll(spec *guest.Spec, end time.Time) (first int, errs error) {
	out, err := openPort(spec.Output)
	if err != nil {
		return guest.StatusFailed, err
	}
	defer out.Close()
	for i := range spec.Programs {
		p := &spec.Programs[i]
		code, err := run(p, spec.Env, out, end)
		if first == 0 && !(p.Finds && code == 1) {
			first = code
		}
		errs = errors.Join(errs, err)
		if time.Now().After(end) {
			break
		}
	}
	drain(out)
	return first, errs
}

// run runs one program and returns its exit status; 128 and the signal's number
// where one killed it.
func run(p *guest.Program, env []string, out *os.File, end time.Time) (int, error) {
	cmd := exec.Command(p.Args[0], p.Args[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = out, out, p.Dir
	cmd.Env = append(os.Environ(), env...)
	if err := cmd.Start(); err != nil {
		return guest.StatusNoStart, err
	}
	late := time.AfterFunc(time.Until(end), func() { _ = cmd.Process.Signal(unix.SIGQUIT) })
	err := cmd.Wait()
	if !late.Stop() {
		return guest.StatusTimeout, fmt.Errorf("%s did not end in time", p.Args[0])
	}
	if err != nil && !errors.As(err, new(*exec.ExitError)) {
		return guest.StatusFailed, err
	}
	ws := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if ws.Signaled() {
		return 128 + int(ws.Signal()), nil
	}
	return ws.ExitStatus(), nil
}

// report sends the exit status. Whoever waits takes its absence for a crash.
func report(spec *guest.Spec, code int) error {
	f, err := openPort(spec.Status)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = fmt.Fprintln(f, code)
	drain(f)
	return err
}
