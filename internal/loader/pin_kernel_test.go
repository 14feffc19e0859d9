// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
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

// loadPinned is loadPinned with the types that all tests share.
func loadPinned(pins *loader.Pins) (*loader.Programs, error) {
	return loader.LoadPinned(pins, loadertest.Types())
}
