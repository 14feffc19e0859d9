// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// Helpers that a kernel in lockdown=confidentiality has not (bpf_base_func_proto, and
// LOCKDOWN_BPF_READ_KERNEL in bpf_tracing_func_proto): a program with one of them does
// not load there.
var locked = []asm.BuiltinFunc{
	asm.FnProbeRead, asm.FnProbeReadStr, asm.FnProbeReadKernel, asm.FnProbeReadKernelStr, asm.FnProbeReadUser, asm.FnProbeReadUserStr,
}

// TestLockdown: nothing but what lists who holds a socket needs more than lockdown
// allows, and that chooses.
func TestLockdown(t *testing.T) {
	for name, load := range map[string]func() (*ebpf.CollectionSpec, error){
		"adopt": loadAdopt, "convert": loadConvert, "destroy": loadDestroy, "ends": loadEnds, "guard": loadGuard, "iter": loadIter,
		"lookup": loadLookup, "provoke": loadProvoke, "silence": loadSilence, "sockops": loadSockops,
	} {
		spec, err := load()
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range spec.Programs {
			for _, ins := range p.Instructions {
				if ins.IsBuiltinCall() && slices.Contains(locked, asm.BuiltinFunc(ins.Constant)) {
					t.Errorf("%s: %s calls %v [follow pointers directly]", name, p.Name, asm.BuiltinFunc(ins.Constant))
				}
			}
		}
	}
}
