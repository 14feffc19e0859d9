// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/policy"
	"github.com/sockhealth/sockhealth/internal/sockets"
)

func TestCgroupRoot(t *testing.T) {
	labtest.Root(t)
	root, err := loader.CgroupRoot()
	if err != nil {
		t.Fatal(err)
	}
	if c := labtest.Cgroup(t); !strings.HasPrefix(c.Path, root+"/") {
		t.Errorf("root %s, but cgroups are made at %s", root, c.Path)
	}
}

func TestAttachRefusesOtherPaths(t *testing.T) {
	p := loadertest.Load(t)
	var missing *loader.MissingError
	if err := p.Attach(t.TempDir()); !errors.As(err, &missing) {
		t.Errorf("a plain directory: %v, want a MissingError", err)
	}
	if err := p.Attach(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no directory: %v, want ErrNotExist", err)
	}
	if v1 := "/sys/fs/cgroup/cpu"; cgroupV1(v1) {
		if err := p.Attach(v1); !errors.As(err, &missing) || !strings.Contains(missing.What, "cgroup v1") {
			t.Errorf("a cgroup v1 path: %v", err)
		}
	}
}

func cgroupV1(path string) bool {
	_, err := os.Stat(filepath.Join(path, "cgroup.clone_children"))
	return err == nil
}

// TestAttachHalfWay: where the second program cannot be attached the first one
// comes off again.
func TestAttachHalfWay(t *testing.T) {
	p := loadertest.Load(t)
	parent := labtest.Cgroup(t)
	child := filepath.Join(parent.Path, "child")
	if err := os.Mkdir(child, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(child) })
	foreign, id := foreignSockops(t, parent.Path, 0)
	for _, cgroup := range []string{child, parent.Path} {
		var missing *loader.MissingError
		err := p.Attach(cgroup)
		if !errors.As(err, &missing) {
			t.Fatalf("%s, with an exclusive program: %v, want a MissingError", cgroup, err)
		}
		who := fmt.Sprintf("sockops program %d (%q) at %q allows no other", id, foreignName, parent.Path)
		remedy := fmt.Sprintf("bpftool cgroup detach %s sock_ops id %d", parent.Path, id)
		if !strings.Contains(missing.What, who) || !strings.Contains(missing.Remedy, remedy) {
			t.Errorf("%s: %v, want %q and %q", cgroup, err, who, remedy)
		}
	}
	for _, typ := range []ebpf.AttachType{ebpf.AttachCGroupSetsockopt, ebpf.AttachCGroupSockOps} {
		res, err := link.QueryPrograms(link.QueryOptions{Target: dirFD(t, child), Attach: typ})
		if err != nil {
			t.Fatal(err)
		}
		if len(res.Programs) != 0 {
			t.Errorf("%d programs of type %v left behind", len(res.Programs), typ)
		}
	}
	foreign()
	if err := p.Attach(child); err != nil {
		t.Errorf("with the exclusive program gone: %v", err)
	}
}

func dirFD(t *testing.T, path string) int {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return int(f.Fd())
}

// TestPolicyAgreesWithGo: for random policies and connections the record that
// the kernel made names the peer that policy.Match names.
func TestPolicyAgreesWithGo(t *testing.T) {
	labtest.NeedIPv6(t)
	b := loadertest.New(t, loadertest.Fast)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	ns := everyLocal(t)
	lns := []*net.TCPListener{
		labtest.Listen(t, ns, netip.MustParseAddrPort("0.0.0.0:7100")),
		labtest.Listen(t, ns, netip.MustParseAddrPort("[::]:7101")),
	}
	s := sockets.New(b.Programs)
	matched := 0
	for range 20 {
		pol := randomPolicy(t, r)
		if err := b.Programs.SetPolicy(pol); err != nil {
			t.Fatal(err)
		}
		for range 15 {
			i := r.IntN(2)
			six := i == 1 && r.IntN(2) == 0
			addr := func() netip.Addr { return randomLocal(r, six) }
			d := labtest.Dialer{NS: ns, Local: netip.AddrPortFrom(addr(), 0), Setup: func(fd int) error {
				return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_FREEBIND, 1) // binds to the route's addresses
			}}
			client := d.Dial(t, netip.AddrPortFrom(addr(), uint16(7100+i)))
			server := labtest.Accept(t, lns[i])
			for _, end := range []struct {
				c   *net.TCPConn
				dir conn.Direction
			}{{client, conn.Outbound}, {server, conn.Inbound}} {
				if agreed(t, s, b.Programs.InForce(), pol, ns, end.c, end.dir) {
					matched++
				}
			}
			client.SetLinger(0)
			client.Close()
			server.Close()
		}
	}
	if matched == 0 {
		t.Error("no connection matched at all")
	}
	wantNoFaults(t, b.Programs)
}

// everyLocal is a namespace in which every address of fd91::/64 is local, as those of
// 127.0.0.0/8 are.
func everyLocal(t *testing.T) *netns.NS {
	t.Helper()
	ns := labtest.Netns(t)
	err := ns.Do(func() error {
		return netlink.RouteAdd(&netlink.Route{
			LinkIndex: 1, Type: 2 /* RTN_LOCAL */, Table: 255, /* local */
			Dst: &net.IPNet{IP: net.ParseIP("fd91::"), Mask: net.CIDRMask(64, 128)},
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return ns
}

// randomLocal is an address that is local there.
func randomLocal(r *rand.Rand, six bool) netip.Addr {
	if six {
		return netip.AddrFrom16([16]byte{0xfd, 0x91, 14: byte(r.IntN(3)), 15: byte(1 + r.IntN(3))})
	}
	return netip.AddrFrom4([4]byte{127, byte(r.IntN(3)), byte(r.IntN(3)), byte(1 + r.IntN(3))})
}

// agreed compares the peer of a connection's record with that of the policy, and reports
// whether the policy has one.
func agreed(t *testing.T, s *sockets.Sockets, force *loader.InForce, pol *policy.Policy, ns *netns.NS, c *net.TCPConn, dir conn.Direction) bool {
	t.Helper()
	local, remote := labtest.Addr(c.LocalAddr()), labtest.Addr(c.RemoteAddr())
	snap, err := s.Get(ns, local, remote)
	if err != nil {
		t.Fatal(err)
	}
	got, want := "", ""
	if snap.HasRecord {
		got = force.Peer(snap.Record.Policy).Name
	}
	peer, ok := pol.Match(remote, local.Port(), dir)
	if ok {
		want = peer.Name
	}
	if got != want {
		t.Errorf("%s %s -> %s: the kernel says %q, Go %q; policy:\n%v", dir, local, remote, got, want, pol.Compile())
	}
	return ok
}

// randomPolicy makes a valid policy over the addresses of the test.
func randomPolicy(t *testing.T, r *rand.Rand) *policy.Policy {
	t.Helper()
	for {
		var sb strings.Builder
		sb.WriteString("version: 1\npeers:\n")
		for i := range 1 + r.IntN(6) {
			prefix := netip.PrefixFrom(netip.AddrFrom4([4]byte{127, byte(r.IntN(3)), byte(r.IntN(3)), byte(r.IntN(4))}), r.IntN(33))
			if r.IntN(3) == 0 {
				prefix = netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 0x91, 14: byte(r.IntN(3)), 15: byte(r.IntN(4))}), r.IntN(129))
			}
			fmt.Fprintf(&sb, "  - {name: p%d, cidrs: [%q]", i, prefix.Masked())
			if r.IntN(3) == 0 {
				fmt.Fprintf(&sb, ", ports: [%d-%d]", 7000+r.IntN(101), 7100+r.IntN(3))
			}
			fmt.Fprintf(&sb, ", direction: %s", []string{"outbound", "inbound", "both"}[r.IntN(3)])
			if prefix.Bits() < prefix.Addr().BitLen() && r.IntN(3) == 0 {
				inside := netip.PrefixFrom(prefix.Masked().Addr(), prefix.Bits()+1+r.IntN(prefix.Addr().BitLen()-prefix.Bits()))
				fmt.Fprintf(&sb, ", except: [%q]", inside.Masked())
			}
			sb.WriteString("}\n")
		}
		// Two entries may collide, or reach ::ffff:0:0/96 from above: try again.
		if pol, err := policy.Parse("random.yaml", []byte(sb.String())); err == nil {
			return pol
		}
	}
}

// TestSwapIsWhole: while policies are swapped, every connection gets all of one
// of them.
func TestSwapIsWhole(t *testing.T) {
	b := loadertest.New(t, loadertest.Fast)
	texts := []string{loadertest.Fast, slowPolicy + "\npeers: [{name: server, cidrs: [10.91.2.0/24]}]\n"}
	stop, done := make(chan struct{}), make(chan int)
	go func() {
		swaps := 0
		for {
			select {
			case <-stop:
				done <- swaps
				return
			default:
				pol, err := policy.Parse("swap.yaml", []byte(texts[swaps%2]))
				if err == nil {
					err = b.Programs.SetPolicy(pol)
				}
				if err != nil {
					t.Error(err)
				}
				swaps++
			}
		}
	}()
	ln := labtest.Listen(t, b.Server, netip.AddrPortFrom(b.ServerAddr4, 0))
	seen := make(map[conn.Options]int)
	opened := uint64(0)
	for deadline := time.Now().Add(3 * late); opened < uint64(labtest.Fewer(400)) || len(seen) < 2 && time.Now().Before(deadline); opened++ {
		client := labtest.Dial(t, b.Client, netip.AddrPort{}, labtest.Addr(ln.Addr()))
		seen[labtest.Options(t, client)]++
		client.Close()
		labtest.Accept(t, ln).Close()
	}
	close(stop)
	t.Logf("%d swaps: %v", <-done, seen)
	if len(seen) != 2 || seen[fast] == 0 || seen[slow] == 0 {
		t.Errorf("options seen: %v, want only %v and %v", seen, fast, slow)
	}
	// One name keeps its counters over all of that.
	if c := mustCounters(t, b.Programs, "server"); c.OpenedOutbound != opened {
		t.Errorf("%d connections counted, want %d", c.OpenedOutbound, opened)
	}
	wantNoFaults(t, b.Programs)
}

// TestForeignSetsockopt: another program that handles an option itself is not
// undone by ours, which runs after it.
func TestForeignSetsockopt(t *testing.T) {
	b := loadertest.New(t, loadertest.Fast)
	const option = 77 // none that the kernel knows
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.CGroupSockopt, AttachType: ebpf.AttachCGroupSetsockopt, License: "GPL",
		Instructions: asm.Instructions{
			asm.LoadMem(asm.R2, asm.R1, 28, asm.Word), // bpf_sockopt.optname
			asm.JNE.Imm(asm.R2, option, "out"),
			asm.Mov.Imm(asm.R2, -1),
			asm.StoreMem(asm.R1, 32, asm.R2, asm.Word), // bpf_sockopt.optlen: handled
			asm.Mov.Imm(asm.R0, 1).WithSymbol("out"),
			asm.Return(),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer prog.Close()
	child := filepath.Join(b.Cgroup.Path, "child")
	if err := os.Mkdir(child, 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := link.AttachCgroup(link.CgroupOptions{Path: child, Attach: ebpf.AttachCGroupSetsockopt, Program: prog})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.WriteFile(filepath.Join(child, "cgroup.procs"), []byte("0"), 0); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(child)
	defer b.Cgroup.Enter() // out of the child
	client, _ := labtest.Pair(t, b.Lab, 0)
	labtest.Control(t, client, func(fd int) error {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, option, 1); err != nil {
			t.Errorf("an option that the other program handled: %v", err)
		}
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, option+1, 1); err != unix.ENOPROTOOPT {
			t.Errorf("an option that nobody handled: %v, want ENOPROTOOPT", err)
		}
		return nil
	})
}
