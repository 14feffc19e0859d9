// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/report"
)

// needRunc ends the test without runc, which virtual machines lack on purpose.
func needRunc(t *testing.T) {
	t.Helper()
	labtest.Root(t)
	if labtest.Without("runc") {
		t.Skip("needs runc")
	}
	if _, err := exec.LookPath("runc"); err == nil {
		return
	}
	labtest.SkipOrFail(t, "needs runc")
}

// oci is what containers are made of: a program that runs alone, and a folder for
// runc's own notes.
type oci struct{ dir string }

// newOCI builds the program that containers run. What killed tests left is removed
// first.
func newOCI(t *testing.T) *oci {
	t.Helper()
	needRunc(t)
	sweepV1(t, v1Mounts(t))
	o := &oci{t.TempDir()}
	if beside, ok := labtest.Beside("inside"); ok {
		raw, err := os.ReadFile(beside)
		if err = errors.Join(err, os.WriteFile(filepath.Join(o.dir, "inside"), raw, 0o755)); err != nil {
			t.Fatal(err)
		}
		return o
	}
	build := exec.Command("go", "build", "-o", filepath.Join(o.dir, "inside"), "./testdata/inside")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the containers' program: %v\n%s", err, out)
	}
	return o
}

// ociContainer is a running container of runc's, with a network namespace of the
// test's and a cgroup below the test's.
type ociContainer struct {
	*oci
	id, pod string
	cgroup  string // below the root of every hierarchy
	in      *os.File
	answers *os.File
	out     *bufio.Scanner // of answers
}

// run starts a container; its cgroup is that of a pod's container. bind is the agent's
// run directory, or the report directory in it: the container sees it at /agent.
func (o *oci) run(t *testing.T, g *lab.Cgroup, ns *netns.NS, n int, bind string) *ociContainer {
	t.Helper()
	c := &ociContainer{
		oci: o, id: fmt.Sprintf("%04x%08x%052x", n, os.Getpid(), 0), pod: fmt.Sprintf("a5c1f8d5-1919-434d-add7-%012x", n),
	}
	c.cgroup = filepath.Join("/", filepath.Base(g.Path), "kubepods", "burstable", "pod"+c.pod, c.id)
	bundle := filepath.Join(o.dir, c.id)
	c.write(t, bundle, ns, bind)
	stdin, in := pipe(t)
	out, stdout := pipe(t)
	c.in, c.answers, c.out = in, out, bufio.NewScanner(out)
	t.Cleanup(func() { c.remove(t) })
	args := []string{"create", "--bundle", bundle, "--pid-file", filepath.Join(bundle, "pid")}
	if os.Getenv("SOCKHEALTH_VM") != "" {
		args = append(args, "--no-pivot") // its root is the initial file system, which cannot be another's
	}
	create := o.command(append(args, c.id)...)
	create.Stdin, create.Stdout = stdin, stdout
	stderr, err := os.Create(filepath.Join(bundle, "stderr")) // no pipe: the container keeps it
	if err != nil {
		t.Fatal(err)
	}
	create.Stderr = stderr
	if err := create.Run(); err != nil {
		said, _ := os.ReadFile(stderr.Name())
		t.Fatalf("runc create: %v: %s", err, said)
	}
	_ = errors.Join(stdin.Close(), stdout.Close(), stderr.Close())
	c.place(t, g, filepath.Join(bundle, "pid"))
	o.must(t, "start", c.id)
	return c
}

// place sees to it that the container is in its cgroup of v2, whichever cgroups runc
// knows on this machine.
func (c *ociContainer) place(t *testing.T, g *lab.Cgroup, pidFile string) {
	t.Helper()
	pid, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	own, err := os.ReadFile(filepath.Join("/proc", string(pid), "cgroup"))
	if err != nil {
		t.Fatal(err)
	}
	if slices.Contains(strings.Split(string(own), "\n"), "0::"+c.cgroup) {
		return // runc 1.1 and later
	}
	dir := filepath.Join(filepath.Dir(g.Path), c.cgroup)
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "cgroup.procs"), pid, 0)); err != nil {
		t.Fatal(err)
	}
}

// write makes the bundle: a root with the program alone, and config.json.
func (c *ociContainer) write(t *testing.T, bundle string, ns *netns.NS, bind string) {
	t.Helper()
	root := filepath.Join(bundle, "rootfs")
	for _, dir := range []string{"proc", "dev"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Link(filepath.Join(c.dir, "inside"), filepath.Join(root, "inside")); err != nil {
		t.Fatal(err)
	}
	type m map[string]any
	config, err := json.Marshal(m{
		"ociVersion": "1.0.2",
		"process":    m{"user": m{"uid": insideUID, "gid": insideUID}, "args": []string{"/inside"}, "cwd": "/"},
		"root":       m{"path": "rootfs"},
		"mounts": []m{
			{"destination": "/proc", "type": "proc", "source": "proc"},
			{"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
			{"destination": "/agent", "type": "bind", "source": bind, "options": []string{"bind", "ro"}},
		},
		"linux": m{
			"cgroupsPath": c.cgroup,
			"namespaces": []m{
				{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"},
				{"type": "network", "path": fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.FD())},
			},
		},
	})
	if err := errors.Join(err, os.WriteFile(filepath.Join(bundle, "config.json"), config, 0o644)); err != nil {
		t.Fatal(err)
	}
}

// insideUID is whose processes containers run.
const insideUID = 1000

// command is runc.
func (o *oci) command(args ...string) *exec.Cmd {
	return exec.Command("runc", append([]string{"--root", filepath.Join(o.dir, "state")}, args...)...)
}

func (o *oci) must(t *testing.T, args ...string) {
	t.Helper()
	if out, err := o.command(args...).CombinedOutput(); err != nil {
		t.Fatalf("runc %q: %v: %s", args, err, out)
	}
}

// remove ends the container and removes what runc made for it: cgroups of v1, and
// those above them that are the test's own. It may be gone; what is left of v2 goes
// with the test's cgroup.
func (c *ociContainer) remove(t *testing.T) {
	t.Helper()
	_ = c.in.Close()
	if out, err := c.command("delete", "--force", c.id).CombinedOutput(); err != nil {
		t.Errorf("runc delete: %v: %s", err, out)
	}
	for _, point := range v1Mounts(t) {
		for path := c.cgroup; path != "/"; path = filepath.Dir(path) {
			if err := unix.Rmdir(filepath.Join(point, path)); err != nil && !errors.Is(err, unix.ENOENT) {
				break // another container is below
			}
		}
	}
}

// kill ends the container at once, with whatever its processes have open, and
// returns when its cgroup is gone.
func (c *ociContainer) kill(t *testing.T, g *lab.Cgroup) {
	t.Helper()
	c.must(t, "kill", c.id, "KILL")
	labtest.Eventually(t, 20*time.Second, func() bool {
		_ = c.command("delete", "--force", c.id).Run()
		err := unix.Rmdir(filepath.Join(filepath.Dir(g.Path), c.cgroup)) // where runc did not make it
		return err == nil || errors.Is(err, unix.ENOENT)
	}, "the end of the container and its cgroup")
}

// insideAsk is what the program in a container is told, insideTold what it answers:
// testdata/inside.
type insideAsk struct {
	Do          string
	Local, Peer netip.AddrPort
	Cookie      uint64
	Socket      string
	Elapsed     time.Duration
}

type insideTold struct {
	Cookie  uint64
	Results []report.Result
	Error   string
}

// answerWithin is how long a container may take: a report waits for a verdict.
const answerWithin = time.Minute

// ask has the container do something.
func (c *ociContainer) ask(t *testing.T, a insideAsk) (told insideTold) {
	t.Helper()
	if err := json.NewEncoder(c.in).Encode(a); err != nil {
		t.Fatal(err)
	}
	if err := c.answers.SetReadDeadline(time.Now().Add(answerWithin)); err != nil {
		t.Fatal(err)
	}
	if !c.out.Scan() {
		t.Fatalf("the container ended, or does not answer: %v", c.out.Err())
	}
	if err := json.Unmarshal(c.out.Bytes(), &told); err != nil {
		t.Fatal(err)
	}
	return told
}

// works sends something over a connection of the container's, and waits for the echo.
func (c *ociContainer) works(t *testing.T, local netip.AddrPort) {
	t.Helper()
	if told := c.ask(t, insideAsk{Do: "echo", Local: local}); told.Error != "" {
		t.Errorf("container %s: connection of %s: %s", c.pod, local, told.Error)
	}
}

// report reports a call from inside; there is one result.
func (c *ociContainer) report(t *testing.T, a insideAsk) report.Result {
	t.Helper()
	a.Do, a.Socket = "report", "/agent/report.sock"
	told := c.ask(t, a)
	if told.Error != "" || len(told.Results) != 1 {
		t.Fatalf("container %s reports: %q, %d results, want one", c.pod, told.Error, len(told.Results))
	}
	return told.Results[0]
}

// pipe is one of files: runc hands them on to the container.
func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(r.Close(), w.Close()) })
	return r, w
}
