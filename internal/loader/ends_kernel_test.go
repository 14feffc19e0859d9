// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
)

// outside dials from outside the cgroup: no program is called for the connection.
func (b *pinBed) outside(t *testing.T) *net.TCPConn {
	t.Helper()
	if err := b.cgroup.Leave(); err != nil {
		t.Fatal(err)
	}
	c := b.dial(t, false)
	if err := b.cgroup.Enter(); err != nil {
		t.Fatal(err)
	}
	return c
}

// adoptAll makes a pass over the client's namespace.
func (b *pinBed) adoptAll(t *testing.T, p *loader.Programs) {
	t.Helper()
	err := b.Client.Do(func() error {
		_, err := p.Adopt(loader.AdoptOptions{Budget: plenty}, func(loader.Adoption) error { return nil })
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// ended returns the program of the tracepoint that is pinned.
func (b *pinBed) ended(t *testing.T) ebpf.ProgramID {
	t.Helper()
	l, err := link.LoadPinnedLink(filepath.Join(b.dir, "ended"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	info, err := l.Info()
	if err != nil {
		t.Fatal(err)
	}
	return info.Program
}

// gone waits until the kernel has freed a program.
func gone(t *testing.T, id ebpf.ProgramID) {
	t.Helper()
	labtest.Eventually(t, late, func() bool {
		prog, err := ebpf.NewProgramFromID(id)
		if err == nil {
			prog.Close()
		}
		return errors.Is(err, fs.ErrNotExist)
	}, "the program is freed")
}

// TestEndsWithoutAgent: with no agent running the end of an adopted connection is
// counted, once, also of one for which sockops is not called; the next agent's
// tracepoint takes the place of the last one's, and goes with the pins.
func TestEndsWithoutAgent(t *testing.T) {
	b := newPinBed(t)
	a := b.start(t, loadPinned, loadertest.Fast)
	loadertest.Need(t, a.Programs, kernel.Adopt)
	first, second, third := b.outside(t), b.outside(t), b.outside(t)
	b.adoptAll(t, a.Programs)
	if c := mustCounters(t, a.Programs, "server"); c.Adopted != 3 || c.Open() != 3 {
		t.Fatalf("counters %+v", c)
	}
	want := append(slices.Clone(whole), "ended")
	slices.Sort(want)
	if got := b.pinned(t); !slices.Equal(got, want) {
		t.Errorf("pinned %q, want %q", got, want)
	}
	was := b.ended(t)
	open := func(n uint64) {
		t.Helper()
		labtest.Eventually(t, late, func() bool { return mustCounters(t, a.Programs, "server").Open() == n }, "the ends counted")
		if c := mustCounters(t, a.Programs, "server"); c.Adopted != 3 || c.Closed[loader.CauseNormal] != 3-n {
			t.Errorf("counters %+v, want %d open", c, n)
		}
	}
	hangUp := func(c *net.TCPConn) {
		c.SetLinger(0)
		c.Close()
	}
	a.mustStop(t)
	hangUp(first)
	a = b.start(t, loadPinned, loadertest.Fast)
	open(2)
	if now := b.ended(t); now == was {
		t.Error("the tracepoint is the last agent's still")
	}
	gone(t, was)
	hangUp(second)
	open(1)
	b.adoptAll(t, a.Programs)
	if err := os.Remove(filepath.Join(b.dir, "ended")); err != nil {
		t.Fatal(err)
	}
	if got := a.Unpinned(); !slices.Equal(got, []string{"ended"}) {
		t.Errorf("unpinned: %q", got)
	}
	a.mustStop(t)
	a = b.start(t, loadPinned, loadertest.Fast)
	b.adoptAll(t, a.Programs)
	was = b.ended(t)
	hangUp(third)
	open(0)
	wantNoFaults(t, a.Programs)
	a.mustStop(t)
	b.leave(t)
	gone(t, was)
}

// TestFaultsBefore: what went wrong before a start is told apart from what does since.
func TestFaultsBefore(t *testing.T) {
	b := newPinBed(t)
	a := b.start(t, loadPinned, loadertest.Fast)
	if n := a.FaultsBefore(); slices.Max(n) != 0 {
		t.Errorf("before the first start: %v", n)
	}
	a.mustStop(t)
	loadertest.CountFault(t, b.dir, loader.FaultEventLost, 7)
	a = b.start(t, loadPinned, loadertest.Fast)
	all, err := a.Faults()
	if err != nil {
		t.Fatal(err)
	}
	before := a.FaultsBefore()
	for i := range all {
		want := uint64(0)
		if loader.Fault(i) == loader.FaultEventLost {
			want = 7
		}
		if all[i] != want || before[i] != want {
			t.Errorf("%s: %d, before %d, want %d", loader.Fault(i), all[i], before[i], want)
		}
	}
}
