// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
	"github.com/sockhealth/sockhealth/internal/policy"
)

// TestCanaryRule: whatever the policy, connections to the canary's service are
// bounded by the canary's rule where they are seen to open; they are not adopted,
// and count for nobody. The largest policy has room for it.
func TestCanaryRule(t *testing.T) {
	b := &loadertest.Bed{Lab: labtest.New(t, lab.Options{}), Cgroup: labtest.Cgroup(t), Programs: loadertest.Load(t)}
	text := new(strings.Builder)
	text.WriteString("version: 1\npeers:\n  - name: many\n    cidrs: [127.83.72.0/24")
	for i := range policy.MaxPrefixes - 1 {
		fmt.Fprintf(text, ", 11.%d.%d.0/24", i>>8, i&0xff)
	}
	text.WriteString("]\n")
	for _, policyText := range []string{text.String(), loadertest.Fast} {
		b.SetPolicy(t, policyText)
	}
	b.SetPolicy(t, text.String())
	ns := labtest.Netns(t)
	canary := netip.AddrPortFrom(loader.CanaryAddr(), loader.CanaryPort)
	older, _ := labtest.PairTo(t, labtest.Dialer{NS: ns}, ns, canary)
	unset := labtest.Options(t, older)
	if err := b.Programs.Attach(b.Cgroup.Path); err != nil {
		t.Fatal(err)
	}
	labtest.Enter(t, b.Cgroup)
	loopback := labtest.Dialer{NS: ns, Local: netip.AddrPortFrom(loader.CanaryAddr(), 0)}
	client, server := labtest.PairTo(t, loopback, ns, canary)
	beside, _ := labtest.PairTo(t, loopback, ns, netip.AddrPortFrom(loader.CanaryAddr(), 0))
	wantOptions(t, "client", client, loader.CanaryOptions())
	wantOptions(t, "server", server, loader.CanaryOptions())
	if o := labtest.Options(t, beside); o.UserTimeout != 15*time.Second {
		t.Errorf("beside it: %+v", o)
	}
	if loadertest.Has(t, b.Programs, kernel.Adopt) {
		err := ns.Do(func() error {
			_, err := b.Programs.Adopt(loader.AdoptOptions{Budget: plenty}, func(loader.Adoption) error { return nil })
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		wantOptions(t, "an older one", older, unset)
	}
	client.Close()
	server.Close()
	wantNoFaults(t, b.Programs)
	if c := mustCounters(t, b.Programs, "many"); c.OpenedOutbound+c.OpenedInbound != 2 { // beside, both ends
		t.Errorf("counters %+v", c)
	}
}

// TestForeignInEffect: programs of others are told from ours, at the cgroup and above.
func TestForeignInEffect(t *testing.T) {
	p := loadertest.Load(t)
	(&loadertest.Bed{Programs: p}).SetPolicy(t, loadertest.Fast)
	c := labtest.Cgroup(t)
	if err := p.Attach(c.Path); err != nil {
		t.Fatal(err)
	}
	child := filepath.Join(c.Path, "child")
	if err := os.Mkdir(child, 0o755); err != nil {
		t.Fatal(err)
	}
	ask := func(path string, want bool) {
		t.Helper()
		if got, err := p.ForeignInEffect(path); err != nil || got != want {
			t.Errorf("%s: %t, %v, want %t", path, got, err, want)
		}
	}
	ask(child, false)
	ask(filepath.Join(c.Path, "gone"), false)
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SockOps, AttachType: ebpf.AttachCGroupSockOps, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer prog.Close()
	l, err := link.AttachCgroup(link.CgroupOptions{Path: c.Path, Attach: ebpf.AttachCGroupSockOps, Program: prog})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ask(c.Path, true)
	ask(child, true) // it sees these, too
}
