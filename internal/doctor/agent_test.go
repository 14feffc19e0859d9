// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
)

// A running agent has the list that doctor has, and on a machine that runs these tests
// nothing in it is at fault but what is lacking on purpose; what becomes wrong later shows.
func TestRunningAgent(t *testing.T) {
	p := loadertest.Load(t)
	p.LoadAll() // which holds descriptors
	outer := labtest.Cgroup(t)
	inner := filepath.Join(outer.Path, "inner")
	if err := os.Mkdir(inner, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := p.Attach(inner); err != nil {
		t.Fatal(err)
	}
	hidden := error(nil)
	a := &Agent{Programs: p, Cgroup: inner, Namespaces: func() error { return hidden }}
	labtest.NoLeak(t)
	examined, err := Examine(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	checks := a.Examine()
	if len(checks) != len(examined) {
		t.Fatalf("%d checks, doctor has %d", len(checks), len(examined))
	}
	for i, c := range checks {
		fault := labtest.Without(c.Name) && c.Status != Unneeded // or another does what it would
		if d := examined[i]; c.Name != d.Name || c.Name != "namespaces" && c.Status != d.Status || (c.Fault() != "") != fault {
			t.Errorf("%+v at fault %q, doctor says %+v", c, c.Fault(), d)
		}
	}

	hidden = errors.New("two are out of sight")
	a.want(t, "namespaces", Degraded, "two are out of sight; lost: ")
	id := exclusive(t, outer.Path) // ours were there before: it keeps them from nothing
	a.want(t, "foreign_programs", Degraded, fmt.Sprintf("sockops program %d (\"theirs\") at %q does not run for sockets in cgroup %q", id, outer.Path, inner))
	if err := os.Remove(inner); err != nil {
		t.Fatal(err)
	}
	labtest.Eventually(t, time.Minute, func() bool { return a.check(t, "programs").Status != Works }, "the programs come off")
	a.want(t, "programs", Missing, "the programs are off their cgroup, nothing is bounded [")
	a.want(t, "foreign_programs", Untested, "")
}

func (a *Agent) check(t *testing.T, name string) Check {
	t.Helper()
	for _, c := range a.Examine() {
		if c.Name == name {
			return c
		}
	}
	t.Fatalf("no check %s", name)
	return Check{}
}

func (a *Agent) want(t *testing.T, name string, status Status, fault string) {
	t.Helper()
	if c := a.check(t, name); c.Status != status || !strings.Contains(c.Fault(), fault) || (c.Fault() == "") != (fault == "") {
		t.Errorf("%s: %+v, %q, want %s and %q", name, c, c.Fault(), status, fault)
	}
}

// exclusive attaches a sockops program that allows none below.
func exclusive(t *testing.T, cgroup string) ebpf.ProgramID {
	t.Helper()
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "theirs", Type: ebpf.SockOps, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer prog.Close()
	dir, err := os.Open(cgroup)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	err = link.RawAttachProgram(link.RawAttachProgramOptions{
		Target: int(dir.Fd()), Program: prog, Attach: ebpf.AttachCGroupSockOps,
	})
	if err != nil {
		t.Fatal(err)
	}
	info, err := prog.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	return id
}

// What the kernel is too old for is nobody's fault; what it ought to have is.
func TestFault(t *testing.T) {
	running, _, err := kernel.Running()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range kernel.Features() {
		c := Check{Name: f.String(), Status: Degraded, Detail: "not there", Lost: "much", Remedy: "run another"}
		want := ""
		if f.Expected(running) {
			want = "not there; lost: much [run another]"
		}
		if got := c.Fault(); got != want {
			t.Errorf("%s: %q, want %q", f, got, want)
		}
	}
	for status, want := range map[Status]string{Works: "", Unneeded: "", Untested: "", Missing: "gone [see]"} {
		if got := (&Check{Name: "x", Status: status, Detail: "gone", Remedy: "see"}).Fault(); got != want {
			t.Errorf("%s: %q, want %q", status, got, want)
		}
	}
}
