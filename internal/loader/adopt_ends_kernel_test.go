// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
)

// endings are connections of one policy that end in every way there is, by both ends.
type endings struct {
	policy                       string
	reset, bound, flight, normal [2]*net.TCPConn
}

// newEndings makes them, to a server's port.
func newEndings(t *testing.T, a *adoption, policy string, port uint16) *endings {
	t.Helper()
	e := &endings{policy: policy}
	for _, pair := range []*[2]*net.TCPConn{&e.reset, &e.bound, &e.flight, &e.normal} {
		pair[0], pair[1] = labtest.Pair(t, a.Lab, port)
	}
	return e
}

// begin ends those that their peers end, and has the others answered no more.
func (e *endings) begin(t *testing.T, a *adoption, told <-chan loader.Event) {
	t.Helper()
	wantOptions(t, "adopted", e.bound[0], fast)
	if c := mustCounters(t, a.Programs, e.policy); c.Adopted != 4 || c.Open() != 4 {
		t.Errorf("%s: counters %+v", e.policy, c)
	}
	if _, err := e.bound[1].Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	e.reset[1].SetLinger(0)
	e.reset[1].Close()
	if one := next(t, told, e.reset[0]); one.Stall || one.Cause != loader.CauseReset || one.Cookie == 0 || one.Netns != a.Client.Inode() {
		t.Errorf("%s: reset: %+v", e.policy, one)
	}
	e.normal[1].Close()
	e.normal[0].Close()
	lose := func(c *net.TCPConn) {
		t.Helper()
		labtest.Fault(t)(a.StateLoss(labtest.Addr(c.LocalAddr()), labtest.Addr(c.RemoteAddr())))
	}
	lose(e.flight[0])
	if _, err := e.flight[0].Write([]byte("ping")); err != nil { // before a keepalive leaves in its place
		t.Fatal(err)
	}
	lose(e.bound[0])
}

// counted demands that each is counted once.
func (e *endings) counted(t *testing.T, a *adoption) {
	t.Helper()
	labtest.Eventually(t, late, func() bool { return mustCounters(t, a.Programs, e.policy).Open() == 0 }, "none open")
	c := mustCounters(t, a.Programs, e.policy)
	for cause, want := range map[loader.Cause]uint64{loader.CauseReset: 1, loader.CauseIdle: 1, loader.CauseInFlight: 1, loader.CauseNormal: 1} {
		if c.Closed[cause] != want {
			t.Errorf("%s: counters %+v: %s", e.policy, c, cause)
		}
	}
	if c.BytesReceived != 5 || c.BytesAcked != 0 {
		t.Errorf("%s: counters %+v, want 5 bytes received, none acknowledged", e.policy, c)
	}
}

// TestAdoptEnds: the end of an adopted connection is counted once, and told like
// that of any other, by callbacks and by the tracepoint: inside the cgroup and outside.
func TestAdoptEnds(t *testing.T) {
	rules, _, _ := strings.Cut(loadertest.Fast, "peers:")
	a := newAdoption(t, rules+`peers:
  - {name: outside, cidrs: [10.91.2.0/24], ports: [7101]}
  - {name: inside, cidrs: [10.91.2.0/24], ports: [7102]}
`)
	told := events(t, a.Programs)
	outside := newEndings(t, a, "outside", 7101)
	cgroup := labtest.Cgroup(t)
	labtest.Enter(t, cgroup)
	inside := newEndings(t, a, "inside", 7102)
	if err := a.Attach(cgroup.Path); err != nil {
		t.Fatal(err)
	}
	a.settle(t, a.Client)
	all := []*endings{outside, inside}
	for _, e := range all {
		e.begin(t, a, told)
	}
	stalled := inFlightEnds(t, told, outside.flight[0], inside.flight[0])
	if want := loadertest.Has(t, a.Programs, kernel.AdoptEvents); stalled[outside.flight[0]] || stalled[inside.flight[0]] != want {
		t.Errorf("stalls %v, want %t inside and none outside", stalled, want)
	}
	for _, e := range all {
		e.counted(t, a)
	}
	wantNoFaults(t, a.Programs)
}

// inFlightEnds waits until connections with data in flight have ended, and returns of
// which a stall was told before.
func inFlightEnds(t *testing.T, told <-chan loader.Event, conns ...*net.TCPConn) (stalled map[*net.TCPConn]bool) {
	t.Helper()
	stalled = make(map[*net.TCPConn]bool)
	open := make(map[netip.AddrPort]*net.TCPConn)
	for _, c := range conns {
		open[labtest.Addr(c.LocalAddr())] = c
	}
	deadline := time.After(late)
	for len(open) > 0 {
		select {
		case e := <-told:
			c := open[e.Local]
			switch {
			case c == nil: // another, or the server's end
			case e.Stall:
				stalled[c] = true
			default:
				if e.Cause != loader.CauseInFlight || e.Errno != unix.ETIMEDOUT {
					t.Errorf("in flight: %+v", e)
				}
				delete(open, e.Local)
			}
		case <-deadline:
			t.Fatalf("no end told of %d", len(open))
		}
	}
	return stalled
}
