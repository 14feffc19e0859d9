// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
)

const foreignName = "theirs"

// What sockops is called for, and what it can be called for (linux/bpf.h).
const (
	opTimeoutInit       = 1
	opActiveEstablished = 4
	opState             = 10
	opRTT               = 12
	flagRTT             = 8
)

// foreign is a program of another tool: it wants to hear of round trips, shortens the
// first retransmission timeout, and counts what it is called for.
func foreign(t *testing.T) (prog *ebpf.Program, calls *ebpf.Map) {
	t.Helper()
	calls, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 64})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { calls.Close() })
	const op, flags, reply = 0, 84, 4 // in struct bpf_sock_ops
	prog, err = ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: foreignName, Type: ebpf.SockOps, License: "GPL",
		Instructions: asm.Instructions{
			asm.Mov.Reg(asm.R6, asm.R1),
			asm.LoadMem(asm.R7, asm.R6, op, asm.Word),
			asm.StoreMem(asm.RFP, -4, asm.R7, asm.Word),
			asm.LoadMapPtr(asm.R1, calls.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -4),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "counted"),
			asm.Mov.Imm(asm.R1, 1),
			asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
			asm.JNE.Imm(asm.R7, opTimeoutInit, "opened").WithSymbol("counted"),
			asm.Mov.Imm(asm.R1, 50), // ticks
			asm.StoreMem(asm.R6, reply, asm.R1, asm.Word),
			asm.Ja.Label("out"),
			asm.JNE.Imm(asm.R7, opActiveEstablished, "out").WithSymbol("opened"),
			asm.LoadMem(asm.R2, asm.R6, flags, asm.Word),
			asm.Or.Imm(asm.R2, flagRTT),
			asm.Mov.Reg(asm.R1, asm.R6),
			asm.FnSockOpsCbFlagsSet.Call(),
			asm.Mov.Imm(asm.R0, 1).WithSymbol("out"),
			asm.Return(),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { prog.Close() })
	return prog, calls
}

// foreignSockops attaches one as tools do that know no links: flags are those of
// BPF_PROG_ATTACH, 0 allows no other.
func foreignSockops(t *testing.T, cgroup string, flags uint32) (detach func(), id ebpf.ProgramID) {
	t.Helper()
	prog, _ := foreign(t)
	info, err := prog.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ = info.ID()
	fd := dirFD(t, cgroup)
	if err := link.RawAttachProgram(link.RawAttachProgramOptions{
		Target: fd, Program: prog, Attach: ebpf.AttachCGroupSockOps, Flags: flags,
	}); err != nil {
		t.Fatal(err)
	}
	return sync.OnceFunc(func() {
		if err := link.RawDetachProgram(link.RawDetachProgramOptions{
			Target: fd, Program: prog, Attach: ebpf.AttachCGroupSockOps,
		}); err != nil {
			t.Error(err)
		}
	}), id
}

// TestForeignSockops: a program of another tool beside ours, whichever came first,
// here or above, hears what it asked for and is answered to; and so are ours.
func TestForeignSockops(t *testing.T) {
	for _, first := range []bool{true, false} {
		for _, nested := range []bool{true, false} {
			t.Run(fmt.Sprintf("first %v, above %v", first, nested), func(t *testing.T) {
				p := loadertest.Load(t)
				outer := labtest.Cgroup(t)
				b := &loadertest.Bed{Programs: p, Cgroup: outer}
				b.SetPolicy(t, slowPolicy+"peers: [{name: server, cidrs: [10.91.2.0/24]}]\n")
				cgroup := outer.Path
				if nested {
					cgroup = below(t, outer.Path)
				}
				prog, calls := foreign(t)
				theirs := func() {
					l, err := link.AttachCgroup(link.CgroupOptions{Path: outer.Path, Attach: ebpf.AttachCGroupSockOps, Program: prog})
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { l.Close() })
				}
				if first {
					theirs()
				}
				if err := p.Attach(cgroup); err != nil {
					t.Fatal(err)
				}
				if !first {
					theirs()
				}
				labtest.Enter(t, outer)
				if err := os.WriteFile(filepath.Join(cgroup, "cgroup.procs"), []byte("0"), 0); err != nil {
					t.Fatal(err)
				}
				both(t, p, calls)
			})
		}
	}
}

// both opens connections that both programs see.
func both(t *testing.T, p *loader.Programs, calls *ebpf.Map) {
	t.Helper()
	l := labtest.New(t, lab.Options{})
	client, server := labtest.Pair(t, l, 0)
	wantOptions(t, "client", client, slow)
	if err := server.SetReadDeadline(time.Now().Add(late)); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := client.Write([]byte("ping")); err != nil {
			t.Fatal(err)
		}
		if _, err := server.Read(make([]byte, 4)); err != nil {
			t.Fatal(err)
		}
	}
	called := func(op uint32) (n uint64) {
		if err := calls.Lookup(op, &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	labtest.Eventually(t, late, func() bool { return called(opRTT) > 0 }, "theirs hears of round trips")
	server.SetLinger(0)
	server.Close()
	labtest.Eventually(t, late, func() bool {
		return mustCounters(t, p, "server").Closed[loader.CauseReset] == 1
	}, "ours hears of the end")
	// It hears of states since ours wants to: the flags are one set for both.
	if called(opState) == 0 {
		t.Error("ours did not ask for states")
	}
	at, _ := hole(t, l, l.ServerAddr4)
	a := try(t, l.Client, at, false, nil)
	info, err := unix.GetsockoptTCPInfo(a.fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil || called(opTimeoutInit) == 0 || info.Rto > 900_000 {
		t.Errorf("theirs asked for a first timeout of 50 ticks, and it is %d us (%v)", info.Rto, err)
	}
	wantNoFaults(t, p)
}

// TestAround: who is attached where ours are to be, and what that means for both.
func TestAround(t *testing.T) {
	outer := labtest.Cgroup(t).Path
	inner := below(t, outer)
	for _, test := range []struct {
		name         string
		at           string
		flags        uint32
		bars, silent bool
	}{
		{"exclusive above", outer, 0, true, true},
		{"exclusive here", inner, 0, true, false},
		{"gives way above", outer, unix.BPF_F_ALLOW_OVERRIDE, false, true},
		{"gives way here", inner, unix.BPF_F_ALLOW_OVERRIDE, true, false},
		{"shares above", outer, unix.BPF_F_ALLOW_MULTI, false, false},
		{"shares here", inner, unix.BPF_F_ALLOW_MULTI, false, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			detach, id := foreignSockops(t, test.at, test.flags)
			defer detach()
			around, err := loader.Around(inner)
			if err != nil {
				t.Fatal(err)
			}
			var f *loader.Foreign
			for i := range around {
				if around[i].ID == id {
					f = &around[i]
				}
			}
			if f == nil || f.Kind != "sockops" || f.Name != foreignName || f.Cgroup != test.at || f.Bars() != test.bars || f.Silenced() != test.silent {
				t.Fatalf("found %+v", around)
			}
			p := loadertest.Load(t)
			if err := p.Attach(inner); (err != nil) != test.bars {
				t.Errorf("attach: %v", err)
			}
			// The kernel's own count of what runs there.
			n, err := effective(t, inner)
			if want := map[bool]int{false: 2, true: 1}[test.bars || test.silent]; err != nil || n != want {
				t.Errorf("%d sockops programs run there, want %d (%v)", n, want, err)
			}
		})
	}
}

// TestAroundPassed: the nearest above decides for those above it.
func TestAroundPassed(t *testing.T) {
	outer := labtest.Cgroup(t).Path
	middle := below(t, outer)
	inner := filepath.Join(middle, "inner")
	if err := os.Mkdir(inner, 0o755); err != nil {
		t.Fatal(err)
	}
	nearest, _ := foreignSockops(t, middle, unix.BPF_F_ALLOW_MULTI)
	defer nearest()
	// That it is exclusive keeps none from below who were let in before, nor who come
	// by way of those.
	detach, id := foreignSockops(t, outer, 0)
	defer detach()
	around, err := loader.Around(inner)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range around {
		if f.ID == id && (f.Bars() || !f.Silenced()) {
			t.Errorf("found %+v", f)
		}
	}
	if err := loadertest.Load(t).Attach(inner); err != nil {
		t.Error(err)
	}
}

// effective returns how many sockops programs run for the sockets of a cgroup.
func effective(t *testing.T, cgroup string) (int, error) {
	const queryEffective = 1 // BPF_F_QUERY_EFFECTIVE
	res, err := link.QueryPrograms(link.QueryOptions{Target: dirFD(t, cgroup), Attach: ebpf.AttachCGroupSockOps, QueryFlags: queryEffective})
	if err != nil {
		return 0, err
	}
	return len(res.Programs), nil
}

// TestCgroupRootSeen: the root of the hierarchy is found in a cgroup namespace of
// one's own, wherever it is mounted, and what such a namespace mounts for itself is
// not taken for it.
func TestCgroupRootSeen(t *testing.T) {
	labtest.Root(t)
	root, err := loader.CgroupRoot()
	if err != nil {
		t.Fatal(err)
	}
	labtest.Enter(t, labtest.Cgroup(t)) // what the namespace's own root is
	dir := t.TempDir()
	bound, fresh := filepath.Join(dir, "bound"), filepath.Join(dir, "fresh")
	const none = "no mount of cgroup v2 shows its root"
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"as the host mounts it":    {nil, root},
		"and one of its own":       {[]string{"fresh=" + fresh}, root},
		"v2 alone, of its own":     {[]string{"none=/sys", "fresh=/sys/fs/cgroup"}, none},
		"v2 alone, and the host's": {[]string{"bind=" + bound, "none=/sys", "fresh=/sys/fs/cgroup"}, bound},
		"v2 alone":                 {[]string{"bind=" + bound, "none=/sys", "move=/sys/fs/cgroup"}, "/sys/fs/cgroup"},
		"none":                     {[]string{"none=/sys"}, "cgroup v2 is not mounted"},
		"covered":                  {[]string{"none=" + root}, "cgroup v2 is not mounted"},
	} {
		t.Run(name, func(t *testing.T) {
			p := child(t, "root", append([]string{root}, test.args...)...)
			if line := <-p.lines; !strings.Contains(line, test.want) || strings.HasPrefix(test.want, "/") && line != test.want {
				t.Errorf("found %q, want %q", line, test.want)
			}
		})
	}
}

// TestAdoptMovedIn: the cgroup that counts is that in which a socket was made, its
// listener's for one that is accepted: what a process brings with it when it enters
// the cgroup is not seen by the programs, and found by a pass.
func TestAdoptMovedIn(t *testing.T) {
	a := newAdoption(t, bothWays)
	cgroup := labtest.Cgroup(t)
	if err := a.Attach(cgroup.Path); err != nil {
		t.Fatal(err)
	}
	ln := labtest.Listen(t, a.Server, netip.AddrPortFrom(a.ServerAddr4, 0))
	at := labtest.Addr(ln.Addr())
	client := try(t, a.Client, at, false, func(*attempt) { labtest.Enter(t, cgroup) })
	if err, _ := client.ended(late); err != nil {
		t.Fatal(err)
	}
	server := labtest.Accept(t, ln)
	client.wantOptions(unset)
	wantOptions(t, "server", server, unset)
	wantOptions(t, "made inside", labtest.Dial(t, a.Client, netip.AddrPort{}, at), slow)
	a.settle(t, a.Client)
	a.settle(t, a.Server)
	client.wantOptions(slow)
	wantOptions(t, "server", server, slow)
	wantNoFaults(t, a.Programs)
}
