// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
	"github.com/sockhealth/sockhealth/internal/policy"
	"github.com/sockhealth/sockhealth/internal/sockets"
)

// pinBed is a lab and a cgroup with the test in it, and a place for pins.
type pinBed struct {
	*lab.Lab
	cgroup *lab.Cgroup
	dir    string
	ln     *net.TCPListener
}

func newPinBed(t *testing.T) *pinBed {
	t.Helper()
	b := &pinBed{Lab: labtest.New(t, lab.Options{}), cgroup: labtest.Cgroup(t), dir: loadertest.BPFFS(t)}
	labtest.Enter(t, b.cgroup)
	b.ln = labtest.Listen(t, b.Server, netip.AddrPortFrom(b.ServerAddr4, 7100))
	t.Cleanup(func() { b.leave(t) })
	return b
}

// leave removes what is pinned.
func (b *pinBed) leave(t *testing.T) {
	t.Helper()
	if _, err := os.Lstat(b.dir); err != nil {
		return
	}
	pins := b.pins(t)
	if err := pins.Remove(); err != nil {
		t.Error(err)
	}
}

func (b *pinBed) pins(t *testing.T) *loader.Pins {
	t.Helper()
	pins, err := loader.OpenPins(b.dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pins.Close() })
	return pins
}

// agent is one that has started.
type agent struct {
	*loader.Programs
	pins *loader.Pins
}

// starter is loadPinned or a build before it.
type starter func(*loader.Pins) (*loader.Programs, error)

// start is what a start of the agent does.
func (b *pinBed) start(t *testing.T, load starter, text string) agent {
	t.Helper()
	a, err := startIn(b.dir, b.cgroup.Path, load, text)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.stop() })
	return a
}

func startIn(dir, cgroup string, load starter, text string) (a agent, err error) {
	pol, err := policy.Parse("test.yaml", []byte(text))
	if err != nil {
		return a, err
	}
	if a.pins, err = loader.OpenPins(dir); err != nil {
		return a, err
	}
	if a.Programs, err = load(a.pins); err == nil {
		if err = a.SetPolicy(pol); err == nil {
			err = a.Attach(cgroup)
		}
	}
	return a, err
}

// stop is what its stop does. A second one does nothing.
func (a *agent) stop() error {
	if a.pins == nil {
		return nil
	}
	err := a.Close()
	_ = a.pins.Close()
	a.pins = nil
	return err
}

// mustStop stops it now.
func (a *agent) mustStop(t *testing.T) {
	t.Helper()
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
}

func (b *pinBed) dial(t *testing.T, goes bool) *net.TCPConn {
	t.Helper()
	c := labtest.Dialer{NS: b.Client, KeepAlive: goes}.Dial(t, labtest.Addr(b.ln.Addr()))
	labtest.Accept(t, b.ln)
	return c
}

// record is what the kernel has of a connection.
func (b *pinBed) record(t *testing.T, p *loader.Programs, c *net.TCPConn) (conn.Record, bool) {
	t.Helper()
	snap, err := sockets.New(p).Get(b.Client, labtest.Addr(c.LocalAddr()), labtest.Addr(c.RemoteAddr()))
	if err != nil {
		t.Fatal(err)
	}
	return snap.Record, snap.HasRecord
}

// pinned lists the directory.
func (b *pinBed) pinned(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir(b.dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// whole is what is pinned when a start is complete.
var whole = []string{"setsockopt", "sh_events", "sh_faults", "sh_names", "sh_policy", "sh_records", "sh_servers", "sh_state", "sh_stats", "sockops"}

// linkIDs are those of the two links.
func (b *pinBed) linkIDs(t *testing.T) (ids [2]link.ID) {
	t.Helper()
	for i, name := range []string{"setsockopt", "sockops"} {
		l, err := link.LoadPinnedLink(filepath.Join(b.dir, name), nil)
		if err != nil {
			t.Fatal(err)
		}
		info, err := l.Info()
		if err != nil {
			t.Fatal(err)
		}
		ids[i] = info.ID
		l.Close()
	}
	return ids
}

// mapID is that of a map that is pinned.
func (b *pinBed) mapID(t *testing.T, name string) ebpf.MapID {
	t.Helper()
	m, err := ebpf.LoadPinnedMap(filepath.Join(b.dir, name), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	info, err := m.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	return id
}

// TestBoundWithoutAgent: with no agent running connections are bounded as they
// open, and the bound is held.
func TestBoundWithoutAgent(t *testing.T) {
	b := newPinBed(t)
	a := b.start(t, loadPinned, loadertest.Fast)
	a.mustStop(t)
	c := b.dial(t, true)
	if o := labtest.Options(t, c); o.UserTimeout != fast.UserTimeout || o.Idle > fast.Idle || !o.KeepAlive {
		t.Errorf("a connection has %+v", o)
	}
	labtest.Setsockopt(t, c, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 0)
	if o := labtest.Options(t, c); o.UserTimeout != fast.UserTimeout {
		t.Errorf("without a user timeout of its own it has %+v", o)
	}
	if d := cmp.Diff(whole, b.pinned(t)); d != "" {
		t.Errorf("pins (-want +got):\n%s", d)
	}
}

// manyPeers is a policy in which the entry of loadertest.Fast stands last.
const manyPeers = `version: 1
defaults:
  user_timeout: 3s
  keepalive: {idle: 1s, interval: 1s, count: 2}
peers:
  - {name: a, cidrs: [10.92.0.0/24]}
  - {name: b, cidrs: [10.93.0.0/24]}
  - {name: server, cidrs: [10.91.2.0/24, "fd91:0:0:2::/64"]}
`

// TestRestart: ids, counters and records go over to the next agent, which swaps
// the programs in their links.
func TestRestart(t *testing.T) {
	b := newPinBed(t)
	a := b.start(t, loadPinned, loadertest.Fast)
	if a.Takeover().Links || a.Unattended() != 0 {
		t.Errorf("the first start took over %+v", a.Takeover())
	}
	before := b.dial(t, false)
	rec, ok := b.record(t, a.Programs, before)
	revision, links, maps := a.InForce().Policy.Revision, b.linkIDs(t), make(map[string]ebpf.MapID)
	for _, name := range whole {
		if strings.HasPrefix(name, "sh_") {
			maps[name] = b.mapID(t, name)
		}
	}
	if !ok {
		t.Fatal("no record")
	}
	a.mustStop(t)
	stopped := time.Now()
	between := b.dial(t, false)
	labtest.Eventually(t, late, func() bool { return time.Since(stopped) > 300*time.Millisecond }, "time without an agent")

	a = b.start(t, loadPinned, manyPeers)
	took := a.Takeover()
	if !took.Links || took.Revision != revision || took.Moved || took.Lost != nil || took.Converted != 0 || took.Swept != nil {
		t.Errorf("took over %+v", took)
	}
	if took.Unattended < 300*time.Millisecond || took.Unattended > time.Since(stopped) || a.Unattended() != took.Unattended {
		t.Errorf("unattended for %v", took.Unattended)
	}
	if got := b.linkIDs(t); got != links {
		t.Errorf("links %v, want the same %v", got, links)
	}
	for name, id := range maps {
		if got := b.mapID(t, name); got != id {
			t.Errorf("%s is map %d, want the same %d", name, got, id)
		}
	}
	if got, _ := b.record(t, a.Programs, before); got != rec {
		t.Errorf("record %+v, want %+v", got, rec)
	}
	for what, c := range map[string]*net.TCPConn{"before": before, "between": between, "after": b.dial(t, false)} {
		if got, ok := b.record(t, a.Programs, c); !ok || a.InForce().Peer(got.Policy).Name != "server" || got.Policy != rec.Policy {
			t.Errorf("%s: record %+v, %v", what, got, ok)
		}
		wantOptions(t, what, c, fast)
	}
	if c := mustCounters(t, a.Programs, "server"); c.OpenedOutbound != 3 {
		t.Errorf("%d connections counted, want 3", c.OpenedOutbound)
	}
	before.SetLinger(0)
	before.Close()
	labtest.Eventually(t, late, func() bool { return mustCounters(t, a.Programs, "server").Open() == 2 }, "the close counted")
	wantNoFaults(t, a.Programs)

	// A name that comes back after a restart without it has its counters still.
	a.mustStop(t)
	a = b.start(t, loadPinned, "version: 1\npeers: [{name: fresh, cidrs: [10.94.0.0/24]}]\n")
	if c := mustCounters(t, a.Programs, "fresh"); c != (loader.Counters{}) {
		t.Errorf("a new name has %+v", c)
	}
	a.mustStop(t)
	a = b.start(t, loadPinned, manyPeers)
	if c := mustCounters(t, a.Programs, "server"); c.OpenedOutbound != 3 {
		t.Errorf("%d connections counted, want 3", c.OpenedOutbound)
	}
}

// TestAlive: what a start, a beat and a stop note of the agent's life, and a start
// that does not come to its end does not.
func TestAlive(t *testing.T) {
	b := newPinBed(t)
	const pause = 300 * time.Millisecond
	within := func(what string, do func()) {
		t.Helper()
		last := time.Now()
		labtest.Eventually(t, late, func() bool { return time.Since(last) > pause }, "time to pass")
		began := time.Now()
		do()
		ago, err := loader.AliveAgo(b.dir)
		if noted := ago < time.Since(began); err != nil || noted == (what == "a start that fails") {
			t.Errorf("%s: last alive %v ago, %v", what, ago, err)
		}
	}
	var a agent
	start := func() { a = b.start(t, loadPinned, loadertest.Fast) }
	within("a first start", start)
	within("a beat", func() {
		if err := a.Beat(); err != nil {
			t.Error(err)
		}
	})
	within("a stop", func() { a.mustStop(t) })
	within("a start that fails", func() {
		pins := b.pins(t)
		p, err := loadPinned(pins)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(p.Close(), pins.Close()); err != nil {
			t.Error(err)
		}
	})
	within("another start", start)
}

// footprint is what the pins keep in the kernel, by the kernel's ids.
type footprint struct {
	links    []link.ID
	programs []ebpf.ProgramID
	maps     []ebpf.MapID
}

// footprint lists everything that the pins lead to.
func (b *pinBed) footprint(t *testing.T) (f footprint) {
	t.Helper()
	add := func(m *ebpf.Map, err error) {
		if err != nil {
			t.Fatal(err)
		}
		info, err := m.Info()
		if err != nil {
			t.Fatal(err)
		}
		if id, ok := info.ID(); ok && strings.HasPrefix(info.Name, "sh_") { // not what is mapped into this process
			f.maps = append(f.maps, id)
		}
		if inner := uint32(0); info.Type == ebpf.ArrayOfMaps && m.Lookup(uint32(0), &inner) == nil {
			f.maps = append(f.maps, ebpf.MapID(inner))
		}
		m.Close()
	}
	for _, id := range b.linkIDs(t) {
		f.links = append(f.links, id)
		l, err := link.NewFromID(id)
		if err != nil {
			t.Fatal(err)
		}
		info, err := l.Info()
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
		f.programs = append(f.programs, info.Program)
		p, err := ebpf.NewProgramFromID(info.Program)
		if err != nil {
			t.Fatal(err)
		}
		pi, err := p.Info()
		if err != nil {
			t.Fatal(err)
		}
		p.Close()
		ids, _ := pi.MapIDs()
		for _, id := range ids {
			add(ebpf.NewMapFromID(id))
		}
	}
	for _, name := range b.pinned(t) {
		if strings.HasPrefix(name, "sh_") {
			add(ebpf.LoadPinnedMap(filepath.Join(b.dir, name), nil))
		}
	}
	return f
}

// left is what of it is still there.
func (f *footprint) left() (out []string) {
	for _, id := range f.links {
		if l, err := link.NewFromID(id); err == nil {
			l.Close()
			out = append(out, fmt.Sprint("link ", id))
		}
	}
	for _, id := range f.programs {
		if p, err := ebpf.NewProgramFromID(id); err == nil {
			out = append(out, fmt.Sprint("program ", id, p))
			p.Close()
		}
	}
	for _, id := range f.maps {
		if m, err := ebpf.NewMapFromID(id); err == nil {
			out = append(out, fmt.Sprint("map ", id, m))
			m.Close()
		}
	}
	return out
}

// wantNothing waits until nothing of a footprint is left (the kernel frees a map a
// moment after its last user), and demands that nothing is attached or pinned.
func (b *pinBed) wantNothing(t *testing.T, f footprint) {
	t.Helper()
	if len(f.links) != 2 || len(f.programs) != 2 || len(f.maps) < 8 {
		t.Fatalf("the test sees only %+v", f)
	}
	var left []string
	for end := time.Now().Add(late); ; time.Sleep(20 * time.Millisecond) {
		if left = f.left(); len(left) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("left in the kernel: %q", left)
		}
	}
	wantNoneAttached(t, b.cgroup.Path)
	if _, err := os.Lstat(b.dir); !os.IsNotExist(err) {
		t.Errorf("the directory: %v", err)
	}
}

// wantNoneAttached: no program of the kinds that we attach is at the cgroup.
func wantNoneAttached(t *testing.T, cgroup string) {
	t.Helper()
	for _, typ := range []ebpf.AttachType{ebpf.AttachCGroupSetsockopt, ebpf.AttachCGroupSockOps} {
		res, err := link.QueryPrograms(link.QueryOptions{Target: dirFD(t, cgroup), Attach: typ})
		if err != nil || len(res.Programs) != 0 {
			t.Errorf("%d programs of type %v left behind, %v", len(res.Programs), typ, err)
		}
	}
}

// slower is another policy for the connections of Fast.
var slower = strings.Replace(loadertest.Fast, "user_timeout: ", "user_timeout: 1", 1)

// TestAbandon: a first start that fails leaves nothing, a later one what was there, the
// policy included. When the pins are removed nothing of ours is left, and connections are nobody's.
func TestAbandon(t *testing.T) {
	b := newPinBed(t)
	a := b.start(t, loadPinned, loadertest.Fast)
	f := b.footprint(t)
	if err := a.Abandon(); err != nil {
		t.Fatal(err)
	}
	a.mustStop(t)
	b.wantNothing(t, f)
	a = b.start(t, loadPinned, loadertest.Fast)
	revision := a.InForce().Policy.Revision
	a.mustStop(t)
	for range 2 {
		a = b.start(t, loadPinned, slower)
		if got := a.Takeover().Revision; got != revision {
			t.Errorf("took over policy %s, %s was in force", got, revision)
		}
		if err := a.Abandon(); err != nil {
			t.Fatal(err)
		}
		a.mustStop(t)
		wantOptions(t, "after a later start that failed", b.dial(t, false), fast)
	}
	a = b.start(t, loadPinned, slower)
	if err := errors.Join(a.Settle(), a.Abandon()); err != nil {
		t.Fatal(err)
	}
	a.mustStop(t)
	if got := labtest.Options(t, b.dial(t, false)); got == fast {
		t.Error("the policy of a start that succeeded is not in force")
	}
	if f = b.footprint(t); len(f.left()) < 12 {
		t.Fatalf("the test sees only %q", f.left())
	}
	b.leave(t)
	b.wantNothing(t, f)
	wantOptions(t, "afterwards", b.dial(t, false), unset)
}

// TestMove: the programs go to another cgroup, and are gone from the old one.
func TestMove(t *testing.T) {
	b := newPinBed(t)
	elsewhere := labtest.Cgroup(t)
	a, err := startIn(b.dir, elsewhere.Path, loadPinned, loadertest.Fast)
	if err != nil {
		t.Fatal(err)
	}
	a.mustStop(t)
	wantOptions(t, "outside the cgroup", b.dial(t, false), unset)
	a = b.start(t, loadPinned, loadertest.Fast)
	if !a.Takeover().Moved {
		t.Error("not said to have moved")
	}
	wantOptions(t, "inside", b.dial(t, false), fast)
	if d := cmp.Diff(whole, b.pinned(t)); d != "" {
		t.Errorf("pins (-want +got):\n%s", d)
	}
	wantNoneAttached(t, elsewhere.Path)
}

// TestHalfMade: whatever a start that was cut short, or somebody's hand, has left,
// one start makes it whole, and nothing of what can be kept is lost.
func TestHalfMade(t *testing.T) {
	b := newPinBed(t)
	var a agent // what one case made whole the next one damages
	t.Cleanup(func() { _ = a.stop() })
	start := func(t *testing.T) {
		var err error
		if a, err = startIn(b.dir, b.cgroup.Path, loadPinned, loadertest.Fast); err != nil {
			t.Fatal(err)
		}
	}
	cut := func(names ...string) func(t *testing.T) {
		return func(t *testing.T) {
			for _, name := range names {
				if err := os.Remove(filepath.Join(b.dir, name)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	strange := func(path string) func(t *testing.T) {
		return func(t *testing.T) {
			m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 4, MaxEntries: 1})
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			_ = os.Remove(filepath.Join(b.dir, path))
			if err := m.Pin(filepath.Join(b.dir, path)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, tc := range map[string]struct {
		damage  func(t *testing.T)
		unbound bool // while no agent runs
		short   bool // also where tests are to be short
	}{
		"whole":                    {damage: func(*testing.T) {}},
		"one link":                 {damage: cut("sockops"), unbound: true, short: true},
		"the other link":           {damage: cut("setsockopt")},
		"no link":                  {damage: cut("setsockopt", "sockops"), unbound: true},
		"no maps":                  {damage: cut(whole[1:8]...), short: true},
		"no records":               {damage: cut("sh_records")},
		"no names":                 {damage: cut("sh_names", "sh_state")},
		"another map's name":       {damage: strange("sh_records")},
		"another version's pin":    {damage: strange("sh_future"), short: true},
		"a draft of a map":         {damage: strange("new_sh_stats")},
		"nothing of it":            {damage: cut(whole...), unbound: true},
		"a directory that strayed": {damage: func(t *testing.T) { _ = os.Mkdir(filepath.Join(b.dir, "x"), 0o700) }},
	} {
		if testing.Short() && !tc.short {
			continue
		}
		t.Run(name, func(t *testing.T) {
			if a.pins == nil {
				start(t)
			}
			first := b.dial(t, false)
			rec, _ := b.record(t, a.Programs, first)
			opened := mustCounters(t, a.Programs, "server").OpenedOutbound
			a.mustStop(t)
			tc.damage(t)
			if tc.unbound { // the kernel lets go of a link a moment after its pin
				labtest.Eventually(t, late, func() bool {
					return labtest.Options(t, b.dial(t, false)) == unset
				}, "a connection that nothing bounds")
			} else {
				wantOptions(t, "without an agent", b.dial(t, false), fast)
				opened++
			}
			start(t)
			wantOptions(t, "after the start", b.dial(t, false), fast)
			if d := cmp.Diff(whole, b.pinned(t)); d != "" {
				t.Errorf("pins (-want +got):\n%s", d)
			}
			if name == "nothing of it" {
				return
			}
			if got, ok := b.record(t, a.Programs, first); !ok || got != rec {
				t.Errorf("record %+v, %v, want %+v", got, ok, rec)
			}
			if c := mustCounters(t, a.Programs, "server"); c.OpenedOutbound != opened+1 && !tc.unbound {
				t.Errorf("%d connections counted, want %d", c.OpenedOutbound, opened+1)
			}
			wantNoFaults(t, a.Programs)
		})
	}
}

// TestCgroupRemoved: with its cgroup the programs went; the next start attaches
// them anew.
func TestCgroupRemoved(t *testing.T) {
	b := newPinBed(t)
	child := filepath.Join(b.cgroup.Path, "child")
	if err := os.Mkdir(child, 0o755); err != nil {
		t.Fatal(err)
	}
	a, err := startIn(b.dir, child, loadPinned, loadertest.Fast)
	if err != nil {
		t.Fatal(err)
	}
	a.mustStop(t)
	if err := os.Remove(child); err != nil {
		t.Fatal(err)
	}
	b.start(t, loadPinned, loadertest.Fast)
	wantOptions(t, "after the start", b.dial(t, false), fast)
}

// loadPinned is loadPinned with the types that all tests share.
func loadPinned(pins *loader.Pins) (*loader.Programs, error) {
	return loader.LoadPinned(pins, loadertest.Types())
}
