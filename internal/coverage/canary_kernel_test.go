// SPDX-License-Identifier: Apache-2.0

package coverage

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
)

// nobody is a policy whose peers no test has.
const nobody = `version: 1
peers:
  - name: nobody
    cidrs: [10.91.77.0/24]
`

// bounded is the programs at a cgroup of their own, in which this process is not.
func bounded(t *testing.T, policyText string) (*loader.Programs, *lab.Cgroup) {
	t.Helper()
	cgroup := labtest.Cgroup(t)
	p := loadertest.Load(t)
	(&loadertest.Bed{Programs: p}).SetPolicy(t, policyText)
	if err := p.Attach(cgroup.Path); err != nil {
		t.Fatal(err)
	}
	return p, cgroup
}

// A canary says that the programs fire, and which of them does no more.
func TestCanary(t *testing.T) {
	p, cgroup := bounded(t, nobody)
	if err := SendCanary(t.Context(), cgroup.Path); err != nil {
		t.Fatal(err)
	}
	if c, err := p.Counters(); err != nil || c["nobody"].Open() != 0 || c["nobody"].OpenedOutbound != 0 {
		t.Errorf("it counts for a policy: %+v, %v", c, err)
	}
	faults, err := p.Faults()
	if err != nil {
		t.Fatal(err)
	}
	for i, n := range faults {
		if n != 0 {
			t.Errorf("%d faults of %s", n, loader.Fault(i))
		}
	}
	for _, gone := range []struct {
		kind ebpf.AttachType
		want string
	}{
		{ebpf.AttachCGroupSetsockopt, "setsockopt did not hold the bound"},
		{ebpf.AttachCGroupSockOps, "sockops did not bound an outbound connection"},
	} {
		loadertest.Unlink(t, cgroup, gone.kind)
		err := SendCanary(t.Context(), cgroup.Path)
		if !errors.Is(err, ErrSilent) || !strings.Contains(err.Error(), gone.want) {
			t.Errorf("got %v, want %q", err, gone.want)
		}
	}
}

// A policy that names the canary's address has its way on every other port.
func TestCanaryBeside(t *testing.T) {
	p, cgroup := bounded(t, `version: 1
peers:
  - name: local
    cidrs: [127.0.0.0/8]
    direction: outbound
`)
	if err := SendCanary(t.Context(), cgroup.Path); err != nil {
		t.Error(err)
	}
	ns := labtest.Netns(t)
	labtest.Enter(t, cgroup)
	addr := labtest.Dialer{NS: ns}
	client, _ := labtest.PairTo(t, addr, ns, canaryService(0))
	if o := labtest.Options(t, client); o.UserTimeout != p.InForce().Policy.Peers[0].Options.UserTimeout {
		t.Errorf("the policy's connection has %+v", o)
	}
}

// A cgroup that gives domain controllers on takes no process: the canary gets one
// below, which does not stay.
func TestCanaryBelow(t *testing.T) {
	_, cgroup := bounded(t, nobody)
	giveOn(t, cgroup)
	other := exec.Command("cat")
	in, err := other.StdinPipe()
	if err == nil {
		err = other.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(in.Close(), other.Wait()) })
	if err := move(other.Process.Pid, cgroup.Path); !errors.Is(err, unix.EBUSY) {
		t.Fatalf("a process enters: %v", err)
	}
	if err := SendCanary(t.Context(), cgroup.Path); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(cgroup.Path, canaryCgroup)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its cgroup is left: %v", err)
	}
}

// giveOn has the cgroup give a domain controller on. One of a threaded kind (cpu,
// pids) would keep no process out. Where cgroup v1 has the domain controllers there
// is none; a virtual machine's first process gives them on.
func giveOn(t *testing.T, cgroup *lab.Cgroup) {
	t.Helper()
	given, err := os.ReadFile(filepath.Join(cgroup.Path, "cgroup.controllers"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range strings.Fields(string(given)) {
		if !slices.Contains([]string{"memory", "io", "hugetlb", "rdma", "misc"}, c) {
			continue
		}
		if err := os.WriteFile(filepath.Join(cgroup.Path, "cgroup.subtree_control"), []byte("+"+c), 0); err != nil {
			t.Fatal(err)
		}
		return
	}
	const reason = "needs a domain controller that the root of the cgroup hierarchy gives on"
	if os.Getenv("SOCKHEALTH_VM") != "" {
		labtest.SkipOrFail(t, reason)
	}
	t.Skip(reason)
}

// Without a cgroup, and when it is called off, there is no canary, which is not
// to say that the programs are silent.
func TestCanaryNone(t *testing.T) {
	labtest.NoLeak(t)
	_, cgroup := bounded(t, nobody)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, err := range []error{
		SendCanary(t.Context(), filepath.Join(cgroup.Path, "none")), SendCanary(ctx, cgroup.Path),
	} {
		if err == nil || errors.Is(err, ErrSilent) {
			t.Errorf("got %v", err)
		}
	}
}
