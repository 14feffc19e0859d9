// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
)

// role is the variable that makes this test binary another process of a test.
const role = "SOCKHEALTH_LOADER_TEST_ROLE"

// TestMain plays the role that the environment names, if any.
func TestMain(m *testing.M) {
	play, ok := map[string]func(args []string) error{
		"":       func([]string) error { os.Exit(m.Run()); return nil },
		"hold":   hold,
		"flock":  holdAsNobody,
		"starts": starts,
		"mounts": mounts,
		"bound":  bound,
		"root":   findRoot,
	}[os.Getenv(role)]
	if !ok {
		os.Exit(2)
	}
	if err := play(os.Args[1:]); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// hold holds the directory of pins and the cgroup.
func hold(args []string) error {
	pins, err := loader.OpenPins(args[0])
	if err != nil {
		return err
	}
	defer pins.Close()
	lock, err := loader.LockCgroup(args[1], len(args) > 2)
	if err != nil {
		return err
	}
	defer lock.Close()
	return stay()
}

// stay waits to be killed.
func stay() error {
	fmt.Println("held")
	time.Sleep(time.Hour)
	return nil
}

// holdAsNobody locks a directory without any privilege.
func holdAsNobody(args []string) error {
	if err := syscall.Setuid(65534); err != nil {
		return err
	}
	dir, err := os.Open(args[0])
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return err
	}
	return stay()
}

// starts starts and stops the agent's programs over and over.
func starts(args []string) error {
	for i := 0; ; i++ {
		a, err := startIn(args[0], args[1], loadPinned, texts[i%len(texts)])
		if err != nil {
			return err
		}
		fmt.Println("started")
		if err := a.stop(); err != nil {
			return err
		}
	}
}

// mounts is to open a directory of pins where there is no bpffs. It is in a mount
// namespace of its own.
func mounts(args []string) error {
	at := filepath.Dir(loader.DefaultPins)
	if err := uncover(at); err != nil {
		return err
	}
	if len(args) > 0 { // something else is there
		if err := unix.Mount("none", at, "tmpfs", 0, ""); err != nil {
			return err
		}
	}
	pins, err := loader.OpenPins(loader.DefaultPins)
	if err != nil {
		return err
	}
	defer pins.Close()
	st, err := os.Stat(at)
	if err != nil {
		return err
	}
	fmt.Println("mounted", st.Mode().Perm())
	return notPins(at)
}

// uncover unmounts every bpffs there, in a mount namespace of its own.
func uncover(at string) error {
	var sys unix.Statfs_t
	for unix.Statfs(at, &sys) == nil && sys.Type == unix.BPF_FS_MAGIC {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			return err
		}
	}
	if _, err := loader.FindPins(at); !errors.Is(err, loader.ErrNotPins) {
		return fmt.Errorf("the place of bpffs, without one: %w", err)
	}
	return nil
}

// notPins says what is made of the mount point of bpffs, and of a directory that has
// pins of others alone.
func notPins(at string) error {
	theirs := filepath.Join(at, "theirs")
	if err := os.MkdirAll(filepath.Join(theirs, "globals"), 0o700); err != nil {
		return err
	}
	for _, dir := range []string{at, at + "/", theirs} {
		for _, open := range []func(string) (*loader.Pins, error){loader.OpenPins, loader.FindPins} {
			pins, err := open(dir)
			if err == nil {
				err = errors.Join(errors.New("taken"), pins.Close())
			}
			fmt.Println(errors.Is(err, loader.ErrNotPins), err)
		}
	}
	return nil
}

// bound is to open a directory of pins that is a mount point itself, and the root of
// its bpffs that is mounted elsewhere, as a container sees them. It is in a mount
// namespace of its own.
func bound(args []string) error {
	all, pins, root := filepath.Join(args[0], "all"), filepath.Join(args[0], "pins"), filepath.Join(args[0], "root")
	for _, dir := range []string{all, pins, root} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
	}
	if err := unix.Mount("bpf", all, "bpf", 0, "mode=0700"); err != nil {
		return err
	}
	set := filepath.Join(all, "set")
	if err := os.Mkdir(set, 0o700); err != nil {
		return err
	}
	for from, to := range map[string]string{set: pins, all: root} {
		if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	for _, open := range []func(string) (*loader.Pins, error){loader.OpenPins, loader.FindPins} {
		if _, err := open(root); !errors.Is(err, loader.ErrNotPins) || !strings.Contains(err.Error(), "mount point") {
			return fmt.Errorf("the root of bpffs: %w", err)
		}
		p, err := open(pins)
		if err != nil {
			return err
		}
		if err := os.Mkdir(filepath.Join(set, "new_"), 0o700); err != nil { // as a pin
			return err
		}
		if err := errors.Join(p.Remove(), p.Close()); err != nil {
			return err
		}
		if left, err := os.ReadDir(set); err != nil || len(left) > 0 {
			return fmt.Errorf("left: %v, %w", left, err)
		}
	}
	fmt.Println("taken")
	return nil
}

// findRoot finds the root of the cgroup v2 hierarchy in a mount and a cgroup namespace
// of its own, after these mounts: bind=PATH (of the directory named first), fresh=PATH
// (cgroup v2 as a container mounts it), none=PATH (nothing in its place), move=PATH (of
// what was bound).
func findRoot(args []string) error {
	bound := ""
	for _, arg := range args[1:] {
		how, path, _ := strings.Cut(arg, "=")
		err := os.MkdirAll(path, 0o755)
		switch {
		case err != nil:
		case how == "bind":
			bound = path
			err = unix.Mount(args[0], path, "", unix.MS_BIND, "")
		case how == "move":
			err = unix.Mount(bound, path, "", unix.MS_MOVE, "")
		case how == "fresh":
			err = unix.Mount("none", path, "cgroup2", 0, "")
		case how == "none":
			err = unix.Mount("none", path, "tmpfs", 0, "")
		}
		if err != nil {
			return fmt.Errorf("%s: %w", arg, err)
		}
	}
	root, err := loader.CgroupRoot()
	if err != nil {
		return err
	}
	fmt.Println(root)
	return nil
}

// texts are policies with the same bounds for the server.
var texts = []string{loadertest.Fast, manyPeers}

// process is this binary in a role.
type process struct {
	*exec.Cmd
	lines chan string // what it says, closed at its end
}

func child(t *testing.T, what string, args ...string) *process {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{Cmd: exec.Command(exe, args...), lines: make(chan string, 1000)}
	p.Env = append(os.Environ(), role+"="+what)
	p.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	if what == "root" {
		p.SysProcAttr.Unshareflags |= unix.CLONE_NEWCGROUP
	}
	out, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	go p.read(out)
	t.Cleanup(func() { p.kill() })
	return p
}

func (p *process) read(out io.Reader) {
	defer close(p.lines)
	for s := bufio.NewScanner(out); s.Scan(); {
		p.lines <- s.Text()
	}
}

// await waits for a line.
func (p *process) await(t *testing.T, want string) {
	t.Helper()
	select {
	case line, ok := <-p.lines:
		if !ok || line != want {
			t.Fatalf("the other process says %q, want %q", line, want)
		}
	case <-time.After(3 * late):
		t.Fatalf("the other process does not say %q", want)
	}
}

// kill ends it with SIGKILL and returns what it had still to say.
func (p *process) kill() (said []string) {
	_ = p.Process.Kill()
	for line := range p.lines {
		said = append(said, line)
	}
	_ = p.Wait()
	return said
}
