// SPDX-License-Identifier: Apache-2.0

package coverage

import (
	"net"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
)

// What an application sets itself is no drift where the programs see it, and is
// where they do not.
func TestScanDrift(t *testing.T) {
	c := newChecked(t)
	c.attach(t)
	var client, other *net.TCPConn
	c.inside(t, func() {
		client, _ = labtest.Pair(t, c.Lab, 0)
		other, _ = labtest.Pair(t, c.Lab, 0)
	})
	labtest.Setsockopt(t, other, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 3)
	labtest.Setsockopt(t, other, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 12_000)
	labtest.Setsockopt(t, other, unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 9)
	labtest.Setsockopt(t, other, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 0)
	c.want(t, c.Client, other, "", "")
	loadertest.Unlink(t, c.cgroup, ebpf.AttachCGroupSetsockopt)
	labtest.Setsockopt(t, client, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 0)
	c.want(t, c.Client, client, "out", OptionsDrifted)
	c.want(t, c.Client, other, "", "")
	for range 2 { // the same one counts once
		got := c.counts(t)["out"]
		if got.DriftFound != 1 || got.Unmanaged[OptionsDrifted] != 1 || got.Expected != 2 {
			t.Errorf("got %+v", got)
		}
	}
	loadertest.Need(t, c.Programs, kernel.Adopt)
	c.adopt(t)
	labtest.Eventually(t, late, func() bool { c.adopt(t); return len(c.reasons(t)) == 0 }, "the drift is repaired")
	if got := c.counts(t)["out"]; got.DriftFound != 1 || got.Bounded() != 2 {
		t.Errorf("after the repair: %+v", got)
	}
	counters, err := c.Counters()
	if err != nil || counters["out"].Drifted != 1 {
		t.Errorf("counters %+v, %v", counters["out"], err)
	}
}

// What the prober sets for the time of a judgement is no drift.
func TestScanProvoked(t *testing.T) {
	c := newChecked(t)
	loadertest.Need(t, c.Programs, kernel.Provoke)
	c.attach(t)
	var client *net.TCPConn
	c.inside(t, func() { client, _ = labtest.Pair(t, c.Lab, 0) })
	cookies := []uint64{labtest.Cookie(t, client)}
	for _, step := range []struct {
		do   func([]uint64) ([]uint64, error)
		idle time.Duration
	}{{c.Provoke, time.Second}, {c.Calm, 5 * time.Second}} {
		if err := c.Client.Do(func() error {
			_, err := step.do(cookies)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if o := labtest.Options(t, client); o.Idle != step.idle {
			t.Fatalf("options %+v, want idle %s", o, step.idle)
		}
		c.want(t, c.Client, client, "", "")
	}
}

// overwriter is a foreign sockops program that sets a user timeout of its own.
func overwriter(t *testing.T, cgroup string) {
	t.Helper()
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "overwriter", Type: ebpf.SockOps, AttachType: ebpf.AttachCGroupSockOps, License: "GPL",
		Instructions: asm.Instructions{
			asm.LoadMem(asm.R2, asm.R1, 0, asm.Word), // bpf_sock_ops.op
			asm.JNE.Imm(asm.R2, 4, "out"),            // BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB
			asm.StoreImm(asm.RFP, -4, 600_000, asm.Word),
			asm.Mov.Imm(asm.R2, unix.IPPROTO_TCP),
			asm.Mov.Imm(asm.R3, unix.TCP_USER_TIMEOUT),
			asm.Mov.Reg(asm.R4, asm.RFP),
			asm.Add.Imm(asm.R4, -4),
			asm.Mov.Imm(asm.R5, 4),
			asm.FnSetsockopt.Call(),
			asm.Mov.Imm(asm.R0, 1).WithSymbol("out"),
			asm.Return(),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { prog.Close() })
	l, err := link.AttachCgroup(link.CgroupOptions{Path: cgroup, Attach: ebpf.AttachCGroupSockOps, Program: prog})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
}

// What another program sets after ours is told as such.
func TestScanForeign(t *testing.T) {
	c := newChecked(t)
	c.attach(t)
	overwriter(t, c.cgroup.Path)
	var client *net.TCPConn
	c.inside(t, func() { client, _ = labtest.Pair(t, c.Lab, 0) })
	if o := labtest.Options(t, client); o.UserTimeout != 10*time.Minute {
		t.Fatalf("the other program did nothing: %+v", o)
	}
	c.want(t, c.Client, client, "out", Foreign)
	if got := c.counts(t)["out"]; got.DriftFound != 1 || got.Unmanaged[Foreign] != 1 {
		t.Errorf("got %+v", got)
	}
	// Outside the cgroup nobody but the application can have done it.
	outside, _ := labtest.Pair(t, c.Lab, 0)
	loadertest.Need(t, c.Programs, kernel.Adopt)
	c.adopt(t)
	labtest.Setsockopt(t, outside, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 0)
	c.want(t, c.Client, outside, "out", OptionsDrifted)
}
