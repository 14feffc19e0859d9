// SPDX-License-Identifier: Apache-2.0

package cases

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
)

// Fields of struct __sk_buff.
const (
	skbLen        = 0
	skbRemotePort = 132
	skbLocalPort  = 136
)

// lossy loses every third segment without payload that comes in on one
// connection: from ports firstOut to lastOut of the peer, or to the local port in.
// It counts for each connection by itself, so that what one loses does not depend
// on the others; loss is in front of the socket, as on the path.
type lossy struct {
	lost *ebpf.Map
	link link.Link
}

// newLossy makes the sockets of the cgroup lossy until the test ends, or heal.
func (n *node) newLossy(t *testing.T, firstOut, lastOut, in int32) *lossy {
	t.Helper()
	counts, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 8, ValueSize: 8, MaxEntries: 65536})
	if err != nil {
		t.Fatal(err)
	}
	defer counts.Close() // the program holds it
	lost, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lost.Close() })
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.CGroupSKB, AttachType: ebpf.AttachCGroupInetIngress, License: "GPL",
		Instructions: loseThird(counts, lost, firstOut, lastOut, in),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer prog.Close()
	l, err := link.AttachCgroup(link.CgroupOptions{Path: n.cgroup.Path, Attach: ebpf.AttachCGroupInetIngress, Program: prog})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return &lossy{lost: lost, link: l}
}

// loseThird is the program.
func loseThird(counts, lost *ebpf.Map, firstOut, lastOut, in int32) asm.Instructions {
	return asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R0, asm.R6, skbLen, asm.Word),
		asm.JGT.Imm(asm.R0, 100, "pass"),
		asm.LoadMem(asm.R1, asm.R6, skbLocalPort, asm.Word),
		asm.JEq.Imm(asm.R1, in, "count"),
		asm.LoadMem(asm.R1, asm.R6, skbRemotePort, asm.Word),
		asm.HostTo(asm.BE, asm.R1, asm.Word),
		asm.JLT.Imm(asm.R1, firstOut, "pass"),
		asm.JGT.Imm(asm.R1, lastOut, "pass"),

		// The first one of a connection that is lost is that of its cookie's turn.
		asm.Mov.Reg(asm.R1, asm.R6).WithSymbol("count"),
		asm.FnGetSocketCookie.Call(),
		asm.StoreMem(asm.RFP, -8, asm.R0, asm.DWord),
		asm.StoreMem(asm.RFP, -16, asm.R0, asm.DWord),
		asm.LoadMapPtr(asm.R1, counts.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -8),
		asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, -16),
		asm.Mov.Imm(asm.R4, 1), // BPF_NOEXIST
		asm.FnMapUpdateElem.Call(),
		asm.LoadMapPtr(asm.R1, counts.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -8),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "pass"),
		asm.LoadMem(asm.R7, asm.R0, 0, asm.DWord),
		asm.Add.Imm(asm.R7, 1),
		asm.StoreMem(asm.R0, 0, asm.R7, asm.DWord),
		asm.Mod.Imm(asm.R7, 3),
		asm.JNE.Imm(asm.R7, 0, "pass"),

		asm.StoreImm(asm.RFP, -24, 0, asm.Word),
		asm.LoadMapPtr(asm.R1, lost.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -24),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "pass"),
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
		asm.Mov.Imm(asm.R0, 0),
		asm.Return(),

		asm.Mov.Imm(asm.R0, 1).WithSymbol("pass"),
		asm.Return(),
	}
}

// packets returns how many were lost.
func (l *lossy) packets(t *testing.T) (n uint64) {
	t.Helper()
	if err := l.lost.Lookup(uint32(0), &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// heal ends it.
func (l *lossy) heal(t *testing.T) {
	t.Helper()
	if err := l.link.Close(); err != nil {
		t.Fatal(err)
	}
}
