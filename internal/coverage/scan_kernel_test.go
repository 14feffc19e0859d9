// SPDX-License-Identifier: Apache-2.0

package coverage

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
	"github.com/sockhealth/sockhealth/internal/netns"
)

// late is how long what must come may take.
const late = 20 * time.Second

func canaryService(port uint16) netip.AddrPort { return netip.AddrPortFrom(loader.CanaryAddr(), port) }

// outAndIn names the lab's connections at both ends; what comes to one port is
// left alone where it was not seen to open.
const outAndIn = `version: 1
peers:
  - name: out
    cidrs: [10.91.2.0/24, "fd91:0:0:2::/64"]
    direction: outbound
  - name: in
    cidrs: [10.91.1.0/24, "fd91:0:0:1::/64"]
    direction: inbound
  - name: left
    cidrs: [10.91.2.2/32]
    ports: [7300]
    direction: outbound
    existing: ignore
`

// checked is a lab that is checked. The test's process is in the cgroup where it
// enters it.
type checked struct {
	*lab.Lab
	*loader.Programs
	cgroup *lab.Cgroup
	*Scanner
	mended int
}

// newChecked loads the programs, and attaches them later.
func newChecked(t *testing.T) *checked {
	t.Helper()
	c := &checked{Lab: labtest.New(t, lab.Options{}), Programs: loadertest.Load(t), cgroup: labtest.Cgroup(t)}
	(&loadertest.Bed{Programs: c.Programs}).SetPolicy(t, outAndIn)
	c.Scanner = New(Config{
		Programs: c.Programs, Namespaces: c, Cgroup: c.cgroup.Path,
		Canary: func(context.Context) error { return nil },
		Mend:   func() { c.mended++ },
		Log:    slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	return c
}

// All implements Namespaces.
func (c *checked) All() []*netns.NS {
	var all []*netns.NS
	for _, ns := range []*netns.NS{c.Client, c.Server} {
		if own, err := ns.Dup(); err == nil {
			all = append(all, own)
		}
	}
	return all
}

func (c *checked) attach(t *testing.T) {
	t.Helper()
	if err := c.Attach(c.cgroup.Path); err != nil {
		t.Fatal(err)
	}
}

// inside runs fn while the test's process is in the cgroup.
func (c *checked) inside(t *testing.T, fn func()) {
	t.Helper()
	if err := c.cgroup.Enter(); err != nil {
		t.Fatal(err)
	}
	fn()
	if err := c.cgroup.Leave(); err != nil {
		t.Fatal(err)
	}
}

// ends are the addresses of a connection: its own, and its peer's.
type ends [2]netip.AddrPort

func endsOf(c net.Conn) ends { return ends{labtest.Addr(c.LocalAddr()), labtest.Addr(c.RemoteAddr())} }

// reasons lists what is not bounded now.
func (c *checked) reasons(t *testing.T) map[ends]Found {
	t.Helper()
	out := make(map[ends]Found)
	err := c.Unmanaged(t.Context(), func(f *Found) error {
		out[ends{f.Local, f.Remote}] = *f
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// want demands that a connection is listed with a policy and a reason, and with ""
// that it is not.
func (c *checked) want(t *testing.T, ns *netns.NS, end *net.TCPConn, policy string, reason Reason) {
	t.Helper()
	f := c.reasons(t)[endsOf(end)]
	if f.Reason != reason || f.Policy != policy || (reason != "" && f.ID != labtest.ID(t, ns, end)) {
		t.Errorf("%s -> %s: got %+v, want %q of %q", end.LocalAddr(), end.RemoteAddr(), f, reason, policy)
	}
}

// counts is what one scan counts, without what is 0.
func (c *checked) counts(t *testing.T) map[string]Count {
	t.Helper()
	r := c.scan(t.Context())
	if r.Err != nil || r.Namespaces != 2 || r.Ended.IsZero() {
		t.Fatalf("report %+v", r)
	}
	return r.Policies
}

func wantCounts(t *testing.T, got, want map[string]Count) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("counts (-want +got):\n%s", d)
	}
}

// some is a map of reasons with one or two in it.
func some(pairs ...any) map[Reason]uint64 {
	out := make(map[Reason]uint64)
	for i := 0; i < len(pairs); i += 2 {
		out[pairs[i].(Reason)] = uint64(pairs[i+1].(int))
	}
	return out
}

// Connections of every family are found at both ends, with the right direction,
// whether or not the programs saw them open; others are not counted.
func TestScan(t *testing.T) {
	c := newChecked(t)
	pairs := func() int {
		pair := func(d labtest.Dialer, listen, to netip.Addr) {
			ln := labtest.Listen(t, c.Server, netip.AddrPortFrom(listen, 0)) // open to the end
			d.Dial(t, netip.AddrPortFrom(to, labtest.Addr(ln.Addr()).Port()))
			labtest.Accept(t, ln)
		}
		pair(labtest.Dialer{NS: c.Client}, c.ServerAddr4, c.ServerAddr4)
		pair(labtest.Dialer{NS: c.Client}, netip.IPv4Unspecified(), c.ServerAddr4)
		if !lab.IPv6() {
			return 2
		}
		pair(labtest.Dialer{NS: c.Client}, c.ServerAddr6, c.ServerAddr6)
		pair(labtest.Dialer{NS: c.Client, Mapped: true}, netip.IPv6Unspecified(), c.ServerAddr4)
		return 4
	}
	older := pairs()
	// The reverse way, which no entry names: neither end counts.
	back := labtest.Listen(t, c.Client, netip.AddrPortFrom(c.ClientAddr4, 0))
	labtest.Dial(t, c.Server, netip.AddrPort{}, labtest.Addr(back.Addr()))
	labtest.Accept(t, back)
	c.attach(t)
	managed := 0
	c.inside(t, func() { managed = pairs() })
	outside := pairs()
	// A cgroup is told since Linux 5.7, so that those from before and those from
	// outside look the same: both were made outside.
	all := uint64(older + managed + outside)
	not := some(NotInCgroup, older+outside)
	one := Count{Expected: all, Unmanaged: not, Mendable: uint64(older + outside)}
	wantCounts(t, c.counts(t), map[string]Count{"out": one, "in": one, "left": {Unmanaged: some()}})
	if c.mended != 1 || c.Report().Standing != 0 || one.Bounded() != uint64(managed) {
		t.Errorf("asked %d times to mend, report %+v, bounded %d", c.mended, c.Report(), one.Bounded())
	}
	c.counts(t)
	if n := c.Report().Standing; n != 2*uint64(older+outside) {
		t.Errorf("%d stand, want %d", n, 2*(older+outside))
	}
	if err := c.Lacks(kernel.Adopt); err != nil {
		return // nothing mends them
	}
	c.adopt(t)
	one = Count{Expected: all, Unmanaged: some()}
	wantCounts(t, c.counts(t), map[string]Count{"out": one, "in": one, "left": {Unmanaged: some()}})
}

// adopt makes one pass of adoption over each namespace.
func (c *checked) adopt(t testing.TB) {
	t.Helper()
	for _, ns := range []*netns.NS{c.Client, c.Server} {
		err := ns.Do(func() error {
			_, err := c.Adopt(loader.AdoptOptions{Budget: 1 << 20}, func(loader.Adoption) error { return nil })
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// One that is older than the programs, in their cgroup; and one that its policy
// leaves alone for that.
func TestScanOlder(t *testing.T) {
	c := newChecked(t)
	var client, left *net.TCPConn
	c.inside(t, func() {
		client, _ = labtest.Pair(t, c.Lab, 0)
		left, _ = labtest.Pair(t, c.Lab, 7300)
	})
	c.attach(t)
	c.want(t, c.Client, client, "out", Older)
	c.want(t, c.Client, left, "left", Ignored)
	if f := c.reasons(t)[endsOf(client)]; f.Direction != conn.Outbound || f.Uncertain {
		t.Errorf("got %+v", f)
	}
	outside, _ := labtest.PairTo(t, labtest.Dialer{NS: c.Client}, c.Server, netip.AddrPortFrom(c.ServerAddr4, 7300))
	c.want(t, c.Client, outside, "left", NotInCgroup)
	if got := c.counts(t)["left"]; got.Expected != 2 || got.Bounded() != 0 || got.Mendable != 0 {
		t.Errorf("left: %+v", got)
	}
}

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
	unlink(t, c.cgroup, ebpf.AttachCGroupSetsockopt)
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

// A connection whose peer is silent is adopted, and pending.
func TestScanPending(t *testing.T) {
	c := newChecked(t)
	loadertest.Need(t, c.Programs, kernel.Adopt)
	client, _ := labtest.Pair(t, c.Lab, 0)
	fault := labtest.Fault(t)(c.DropPort(labtest.Addr(client.RemoteAddr()).Port()))
	if _, err := client.Write([]byte("anybody there?")); err != nil {
		t.Fatal(err)
	}
	labtest.Eventually(t, late, func() bool { return labtest.TCPInfo(t, client).Retransmits > 0 }, "a retransmission")
	c.adopt(t)
	c.want(t, c.Client, client, "out", Pending)
	if got := c.counts(t)["out"]; got.Mendable != 0 || got.Bounded() != 0 {
		t.Errorf("got %+v", got)
	}
	labtest.Heal(t, fault)
	labtest.Eventually(t, late, func() bool { c.adopt(t); return len(c.reasons(t)) == 0 }, "the peer was heard")

	// A policy that changed waits for adoption, too.
	(&loadertest.Bed{Programs: c.Programs}).SetPolicy(t, outAndIn+"  - {name: new, cidrs: [10.91.2.2/31], user_timeout: 21s}\n")
	c.want(t, c.Client, client, "new", Pending)
	labtest.Eventually(t, late, func() bool { c.adopt(t); return len(c.reasons(t)) == 0 }, "the new policy is in place")
}

// Connections that are not ours to touch.
func TestScanNotOurs(t *testing.T) {
	c := newChecked(t)
	c.attach(t)
	repair, _ := labtest.Pair(t, c.Lab, 0)
	orphan, _ := labtest.Pair(t, c.Lab, 0)
	var kept *net.TCPConn
	c.inside(t, func() { kept, _ = labtest.Pair(t, c.Lab, 0) })
	labtest.Setsockopt(t, repair, unix.IPPROTO_TCP, unix.TCP_REPAIR, 1)
	defer labtest.Setsockopt(t, repair, unix.IPPROTO_TCP, unix.TCP_REPAIR, -1) // TCP_REPAIR_OFF_NO_WP
	c.want(t, c.Client, repair, "out", Repair)

	// An orphan that was seen to open is bounded as before.
	labtest.Fault(t)(c.Drop(lab.Match{Src: lab.Only(c.ClientAddr4), Dst: lab.Only(c.ServerAddr4)}))
	for _, one := range []*net.TCPConn{orphan, kept} {
		if _, err := one.Write([]byte("last words")); err != nil {
			t.Fatal(err)
		}
		one.Close()
	}
	got := c.reasons(t)
	if f := got[endsOf(orphan)]; f.Reason != Orphan {
		t.Errorf("orphan: got %+v", f)
	}
	if f, ok := got[endsOf(kept)]; ok {
		t.Errorf("an orphan with a record: got %+v", f)
	}
}

// Subflows of Multipath TCP, and what its listener keeps for the kernel.
func TestScanMultipath(t *testing.T) {
	c := newChecked(t)
	c.attach(t)
	cfg := net.ListenConfig{KeepAlive: -1}
	cfg.SetMultipathTCP(true)
	d := net.Dialer{KeepAlive: -1}
	d.SetMultipathTCP(true)
	var ln net.Listener
	var end net.Conn
	err := c.Server.Do(func() (err error) {
		ln, err = cfg.Listen(t.Context(), "tcp4", netip.AddrPortFrom(c.ServerAddr4, 0).String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if err := c.Client.Do(func() (err error) {
		end, err = d.Dial("tcp4", ln.Addr().String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer end.Close()
	if ok, err := end.(*net.TCPConn).MultipathTCP(); err != nil || !ok {
		t.Skipf("the kernel has no Multipath TCP: %v", err)
	}
	if f := c.reasons(t)[endsOf(end)]; f.Reason != MPTCP || f.Policy != "out" {
		t.Errorf("got %+v", f)
	}
	plain := labtest.Dial(t, c.Client, netip.AddrPort{}, labtest.Addr(ln.Addr()))
	labtest.Eventually(t, late, func() bool {
		return c.reasons(t)[ends{labtest.Addr(ln.Addr()), labtest.Addr(plain.LocalAddr())}].Reason == Kernel
	}, "the kernel has the server's end")
}

// What cannot be looked at counts: as it does not where it has ended.
func TestScanHidden(t *testing.T) {
	c := newChecked(t)
	c.attach(t)
	var client *net.TCPConn
	c.inside(t, func() { client, _ = labtest.Pair(t, c.Lab, 0) })
	c.Scanner.Programs = blind{c.Programs}
	c.want(t, c.Client, client, "out", Error)
	if got := c.counts(t)["out"]; got.Unmanaged[Error] != 1 || got.Bounded() != 0 {
		t.Errorf("got %+v", got)
	}
}

// blind finds no socket.
type blind struct{ *loader.Programs }

func (blind) Look(netip.AddrPort, netip.AddrPort, uint32) (conn.Snapshot, error) {
	return conn.Snapshot{}, loader.ErrNotFound
}

// A namespace that is gone makes the scan incomplete, and does not hide the rest.
func TestScanIncomplete(t *testing.T) {
	c := newChecked(t)
	c.attach(t)
	labtest.Pair(t, c.Lab, 0)
	c.Scanner.Namespaces = spaces(func() []*netns.NS {
		all := c.All()
		return append([]*netns.NS{closed(t)}, all...)
	})
	r := c.scan(t.Context())
	if r.Err == nil || r.Namespaces != 2 || r.Policies["out"].Expected != 1 {
		t.Errorf("report %+v", r)
	}
}

type spaces func() []*netns.NS

func (s spaces) All() []*netns.NS { return s() }

// closed is a handle of nothing.
func closed(t *testing.T) *netns.NS {
	t.Helper()
	ns, err := labtest.Netns(t).Dup()
	if err != nil {
		t.Fatal(err)
	}
	_ = ns.Close()
	return ns
}
