// SPDX-License-Identifier: Apache-2.0

package coverage

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/policy"
	"github.com/sockhealth/sockhealth/internal/sockdiag"
)

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
	// Those from before were made outside, too.
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
	// Where the machine is so slow that they are quiet for longer than an idle time, a
	// packet of the peer's has to come first.
	labtest.Eventually(t, late, func() bool {
		c.adopt(t)
		got := c.counts(t)
		return len(got["out"].Unmanaged)+len(got["in"].Unmanaged) == 0
	}, "the adoption of all")
	one = Count{Expected: all, Unmanaged: some()}
	wantCounts(t, c.counts(t), map[string]Count{"out": one, "in": one, "left": {Unmanaged: some()}})
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

// Subflows of Multipath TCP are not bounded; what falls back to plain TCP is.
func TestScanMultipath(t *testing.T) {
	c := newChecked(t)
	c.attach(t)
	var ln *net.TCPListener
	c.inside(t, func() { ln = labtest.ListenMultipath(t, c.Server, netip.AddrPortFrom(c.ServerAddr4, 0)) })
	end := labtest.DialMultipath(t, c.Client, labtest.Addr(ln.Addr()))
	if f := c.reasons(t)[endsOf(end)]; f.Reason != MPTCP || f.Policy != "out" {
		t.Errorf("got %+v", f)
	}
	plain := labtest.Dial(t, c.Client, netip.AddrPort{}, labtest.Addr(ln.Addr()))
	labtest.Eventually(t, late, func() bool {
		_, unmanaged := c.reasons(t)[ends{labtest.Addr(ln.Addr()), labtest.Addr(plain.LocalAddr())}]
		in := c.counts(t)["in"]
		return !unmanaged && in.Expected == 2 && in.Bounded() == 1
	}, "the server's end, which nobody has accepted, is bounded")
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

// What its application has closed while the peer keeps its end open has no socket
// any more, although inet_diag tells it as FIN_WAIT2.
func TestScanEnded(t *testing.T) {
	c := newChecked(t)
	c.attach(t)
	client, _ := labtest.Pair(t, c.Lab, 0)
	id := labtest.ID(t, c.Client, client)
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	diag, err := sockdiag.Dial(c.Client)
	if err != nil {
		t.Fatal(err)
	}
	defer diag.Close()
	labtest.Eventually(t, late, func() bool {
		one, err := diag.Get(id)
		return err == nil && one.State == conn.FinWait2 && one.Timer == sockdiag.TimerTimeWait
	}, "no socket is left, and the peer's FIN is owed")
	if got := c.counts(t); got["out"].Expected != 0 {
		t.Errorf("got %+v", got)
	}
	// One that ends between the two looks.
	s := scan{force: c.InForce(), ns: c.Client, diag: diag}
	f, named, err := s.hidden(&candidate{ID: id, state: conn.FinWait2, directions: policy.Directions(conn.Outbound)})
	if err != nil || named {
		t.Errorf("hidden: %+v, %v", f, err)
	}
}

// blind finds no socket.
type blind struct{ *loader.Programs }

func (blind) Look(netip.AddrPort, netip.AddrPort, uint32) (conn.Snapshot, error) {
	return conn.Snapshot{}, loader.ErrNotFound
}

// fickle fails to look from some look on.
type fickle struct {
	*loader.Programs
	after, looks int
}

func (f *fickle) Look(local, remote netip.AddrPort, ifindex uint32) (conn.Snapshot, error) {
	if f.looks++; f.looks > f.after {
		return conn.Snapshot{}, errFickle
	}
	return f.Programs.Look(local, remote, ifindex)
}

func (f *fickle) ForeignInEffect(string) (bool, error) { return false, errFickle }

var errFickle = errors.New("fickle")

// What cannot be looked at twice stays what the first look saw, and the scan is told
// to be incomplete: nothing looks better for it.
func TestScanFickle(t *testing.T) {
	c := newChecked(t)
	c.attach(t)
	outside, _ := labtest.Pair(t, c.Lab, 0)
	var inside, drifted *net.TCPConn
	c.inside(t, func() {
		inside, _ = labtest.Pair(t, c.Lab, 0)
		drifted, _ = labtest.Pair(t, c.Lab, 0)
	})
	loadertest.Unlink(t, c.cgroup, ebpf.AttachCGroupSetsockopt)
	labtest.Setsockopt(t, drifted, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 0)
	for _, tc := range []struct {
		looks                    int
		outside, inside, drifted Reason
	}{
		{0, Error, Error, Error},
		{3, Older, "", OptionsDrifted},
		{100, NotInCgroup, "", OptionsDrifted}, // what others attached cannot be told
	} {
		c.Scanner.Programs = &fickle{Programs: c.Programs, after: tc.looks}
		got := make(map[ends]Reason)
		err := c.Unmanaged(t.Context(), func(f *Found) error {
			if f.Policy == "out" {
				got[ends{f.Local, f.Remote}] = f.Reason
			}
			return nil
		})
		want := map[ends]Reason{endsOf(outside): tc.outside, endsOf(drifted): tc.drifted}
		if tc.inside != "" {
			want[endsOf(inside)] = tc.inside
		}
		if d := cmp.Diff(want, got); d != "" || !errors.Is(err, errFickle) {
			t.Errorf("from look %d on: %v (-want +got):\n%s", tc.looks, err, d)
		}
	}
}

// reloaded gets another policy while it is looked at.
type reloaded struct {
	*loader.Programs
	once func()
}

func (r *reloaded) Look(local, remote netip.AddrPort, ifindex uint32) (conn.Snapshot, error) {
	r.once()
	return r.Programs.Look(local, remote, ifindex)
}

// A scan during which another policy comes tells nothing; and what was found before
// that does not hold for it.
func TestScanReload(t *testing.T) {
	c := newChecked(t)
	c.attach(t)
	bed := &loadertest.Bed{Programs: c.Programs}
	labtest.Pair(t, c.Lab, 0)
	labtest.Pair(t, c.Lab, 7300)
	c.counts(t)
	if r := c.Report(); r.Outdated || !r.Known("left") || r.Known("new") {
		t.Errorf("report %+v", r)
	}
	const other = outAndIn + "  - {name: new, cidrs: [10.91.2.2/32], ports: [7301]}\n"
	before := c.Report()
	c.Scanner.Programs = &reloaded{c.Programs, sync.OnceFunc(func() { bed.SetPolicy(t, other) })}
	if r := c.scan(t.Context()); !r.Outdated {
		t.Errorf("during the reload: %+v", r)
	}
	if r := c.Report(); !r.Outdated || r.Known("left") || !r.Ended.Equal(before.Ended) || len(r.Policies) != 3 {
		t.Errorf("after the reload: %+v", r)
	}
	c.counts(t)
	if r := c.Report(); len(r.Policies) != 4 || r.Outdated || !r.Known("new") {
		t.Errorf("the scan after it: %+v", r)
	}
}

// A namespace that is gone makes the scan incomplete, and does not hide the rest.
func TestScanIncomplete(t *testing.T) {
	c := newChecked(t)
	c.attach(t)
	labtest.Pair(t, c.Lab, 0)
	c.Sight = func() error { return netns.ErrPermission }
	if r := c.scan(t.Context()); !errors.Is(r.Err, ErrSight) || !errors.Is(r.Err, netns.ErrPermission) || r.Namespaces != 2 {
		t.Errorf("with namespaces out of sight: %+v", r)
	}
	c.Sight = nil
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
