// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
	"github.com/sockhealth/sockhealth/internal/netns"
)

// plenty is a budget that no test uses up.
const plenty = 1 << 20

// adoption is a lab without a cgroup: every connection in it is one that the
// programs did not see open.
type adoption struct {
	*lab.Lab
	*loader.Programs
}

func newAdoption(t *testing.T, policyText string) *adoption {
	t.Helper()
	p := loadertest.Load(t)
	loadertest.Need(t, p, kernel.Adopt)
	a := &adoption{Lab: labtest.New(t, lab.Options{}), Programs: p}
	a.setPolicy(t, policyText)
	return a
}

func (a *adoption) setPolicy(t *testing.T, text string) {
	t.Helper()
	(&loadertest.Bed{Programs: a.Programs}).SetPolicy(t, text)
}

// told is what a pass told, by local and remote address.
type told map[[2]netip.AddrPort]loader.Adoption

// of is what it told of c, the zero value where nothing.
func (o told) of(c *net.TCPConn) loader.Adoption {
	return o[[2]netip.AddrPort{labtest.Addr(c.LocalAddr()), labtest.Addr(c.RemoteAddr())}]
}

// pass makes one pass over ns and returns what it told.
func (a *adoption) pass(t *testing.T, ns *netns.NS, budget uint32) (told, loader.AdoptStats) {
	t.Helper()
	out := make(told)
	var stats loader.AdoptStats
	err := ns.Do(func() (err error) {
		stats, err = a.Adopt(loader.AdoptOptions{Budget: budget}, func(one loader.Adoption) error {
			out[[2]netip.AddrPort{one.Local, one.Remote}] = one
			return nil
		})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out, stats
}

// settle makes passes until nothing is pending, and returns what the first told.
func (a *adoption) settle(t *testing.T, ns *netns.NS) told {
	t.Helper()
	first, stats := a.pass(t, ns, plenty)
	labtest.Eventually(t, late, func() bool {
		if stats.Pending() == 0 {
			return true
		}
		_, stats = a.pass(t, ns, plenty)
		return stats.Pending() == 0
	}, "nothing is pending")
	return first
}

func (a *adoption) look(t *testing.T, ns *netns.NS, c *net.TCPConn) (s conn.Snapshot) {
	t.Helper()
	err := ns.Do(func() (err error) {
		s, err = a.Look(labtest.Addr(c.LocalAddr()), labtest.Addr(c.RemoteAddr()), 0)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// adopted is what a pass tells of c, which it must tell of.
func adopted(t *testing.T, o told, c *net.TCPConn) loader.Adoption {
	t.Helper()
	one := o.of(c)
	if one.Outcome == 0 {
		t.Fatalf("nothing is told of %s -> %s, of %d others", c.LocalAddr(), c.RemoteAddr(), len(o))
	}
	return one
}

// silent waits until the last packet from the peer is so old.
func (a *adoption) silent(t *testing.T, ns *netns.NS, c *net.TCPConn, age time.Duration) {
	t.Helper()
	labtest.Eventually(t, age+late, func() bool { return a.look(t, ns, c).PacketAge >= age }, "silence")
}

const bothWays = slowPolicy + `
peers:
  - name: server
    cidrs: [10.91.2.0/24, "fd91:0:0:2::/64"]
    direction: outbound
  - name: client
    cidrs: [10.91.1.0/24, "fd91:0:0:1::/64"]
    direction: inbound
`

// TestAdopt: connections that the programs did not see open get options and record
// at both ends, whatever their family, each with its direction.
func TestAdopt(t *testing.T) {
	a := newAdoption(t, bothWays)
	any6 := netip.AddrPortFrom(netip.IPv6Unspecified(), 0)
	any4 := netip.AddrPortFrom(netip.IPv4Unspecified(), 0)
	for _, test := range []struct {
		name   string
		dialer labtest.Dialer
		listen netip.AddrPort
		dial   netip.Addr
	}{
		{"IPv4", labtest.Dialer{NS: a.Client}, netip.AddrPortFrom(a.ServerAddr4, 0), a.ServerAddr4},
		{"IPv4 to any address", labtest.Dialer{NS: a.Client}, any4, a.ServerAddr4},
		{"IPv6", labtest.Dialer{NS: a.Client}, netip.AddrPortFrom(a.ServerAddr6, 0), a.ServerAddr6},
		{"IPv6 to any address", labtest.Dialer{NS: a.Client}, any6, a.ServerAddr6},
		{"mapped client", labtest.Dialer{NS: a.Client, Mapped: true}, netip.AddrPortFrom(a.ServerAddr4, 0), a.ServerAddr4},
		{"mapped server", labtest.Dialer{NS: a.Client}, any6, a.ServerAddr4},
		{"Go's keepalive", labtest.Dialer{NS: a.Client, KeepAlive: true}, any6, a.ServerAddr6},
	} {
		t.Run(test.name, func(t *testing.T) {
			ln := labtest.Listen(t, a.Server, test.listen)
			client := test.dialer.Dial(t, netip.AddrPortFrom(test.dial, labtest.Addr(ln.Addr()).Port()))
			server := labtest.Accept(t, ln)
			want := slow
			if test.dialer.KeepAlive { // 15 s, 15 s, 9: the idle time is tighter
				want.Idle = 15 * time.Second
			}
			for _, end := range []struct {
				ns   *netns.NS
				c    *net.TCPConn
				way  conn.Direction
				want conn.Options
			}{{a.Client, client, conn.Outbound, want}, {a.Server, server, conn.Inbound, slow}} {
				before := labtest.Options(t, end.c)
				one := adopted(t, a.settle(t, end.ns), end.c)
				if one.Outcome != loader.Adopted || one.Direction != end.way || !one.Adopted || one.Ambiguous || one.State != conn.Established {
					t.Errorf("%s end: told %+v", end.way, one)
				}
				if one.ID != labtest.ID(t, end.ns, end.c) {
					t.Errorf("%s end: told of %+v, want %+v", end.way, one.ID, labtest.ID(t, end.ns, end.c))
				}
				wantOptions(t, end.way.String()+" end", end.c, end.want)
				r := a.look(t, end.ns, end.c).Record
				if !r.Adopted || r.Ambiguous || r.Pending || r.Direction != end.way || r.Effective != end.want || r.Policy != one.Policy {
					t.Errorf("%s end: record %+v", end.way, r)
				}
				if before.KeepAlive && r.App != before {
					t.Errorf("%s end: record %+v, want the wish %+v", end.way, r, before)
				}
				one = adopted(t, a.settle(t, end.ns), end.c)
				if one.Outcome != loader.Managed || one.Wait != loader.WaitNone {
					t.Errorf("%s end: the next pass tells %+v", end.way, one)
				}
			}
		})
	}
	wantNoFaults(t, a.Programs)
}

// TestAdoptOutside: whom no policy names is left as it is, to the byte, and is not
// told of.
func TestAdoptOutside(t *testing.T) {
	a := newAdoption(t, slowPolicy+`
peers: [{name: elsewhere, cidrs: [192.0.2.0/24]}]
`)
	client, server := labtest.Pair(t, a.Lab, 0)
	for _, ns := range []*netns.NS{a.Client, a.Server} {
		if told, stats := a.pass(t, ns, plenty); len(told) != 0 || stats != (loader.AdoptStats{}) {
			t.Errorf("told %+v, %+v", told, stats)
		}
	}
	plainClient, plainServer := labtest.Pair(t, a.Lab, 0)
	compareOptions(t, "client", client, plainClient)
	compareOptions(t, "server", server, plainServer)
	if a.look(t, a.Client, client).HasRecord {
		t.Error("there is a record")
	}
}

// TestAdoptUncertain: where the listeners do not tell the direction both rules
// count, the tighter one wins, and the record says so, until a listener tells.
func TestAdoptUncertain(t *testing.T) {
	a := newAdoption(t, slowPolicy+`
peers:
  - {name: out, cidrs: [10.91.0.0/16], direction: outbound}
  - {name: in, cidrs: [10.91.0.0/16], direction: inbound, user_timeout: 44s}
`)
	tighter := slow
	tighter.UserTimeout = 44 * time.Second
	// The listener is gone, and no client would have that port.
	server := netip.AddrPortFrom(a.ServerAddr4, 7100)
	client, accepted := labtest.PairTo(t, labtest.Dialer{NS: a.Client}, a.Server, server)
	one := adopted(t, a.settle(t, a.Server), accepted)
	if !one.Ambiguous || one.Outcome != loader.Adopted || !a.look(t, a.Server, accepted).Record.Ambiguous {
		t.Errorf("no listener, another port: told %+v", one)
	}
	wantOptions(t, "no listener, another port", accepted, tighter)
	if one := adopted(t, a.settle(t, a.Client), client); one.Ambiguous || one.Direction != conn.Outbound {
		t.Errorf("client: told %+v", one)
	}
	wantOptions(t, "client", client, slow)
	// A listener has come that takes the connection's address.
	ln := labtest.Listen(t, a.Server, netip.AddrPortFrom(netip.IPv6Unspecified(), 7100))
	if one := adopted(t, a.settle(t, a.Server), accepted); one.Ambiguous || one.Direction != conn.Inbound {
		t.Errorf("with its listener: told %+v", one)
	}
	ln.Close() // and is remembered
	if one := adopted(t, a.settle(t, a.Server), accepted); one.Ambiguous || one.Direction != conn.Inbound || one.Outcome != loader.Managed {
		t.Errorf("its listener gone again: told %+v", one)
	}

	// A listener has the port, at another address.
	loopback := labtest.Listen(t, a.Client, netip.MustParseAddrPort("127.0.0.1:0"))
	port := labtest.Addr(loopback.Addr()).Port()
	d := labtest.Dialer{NS: a.Client, Local: netip.AddrPortFrom(a.ClientAddr4, port)}
	client, _ = labtest.PairTo(t, d, a.Server, netip.AddrPortFrom(a.ServerAddr4, 7101))
	if one := adopted(t, a.settle(t, a.Client), client); !one.Ambiguous {
		t.Errorf("a listener at another address: told %+v", one)
	}
	wantOptions(t, "a listener at another address", client, tighter)
	// One for IPv6 alone takes no IPv4.
	only6 := net.ListenConfig{KeepAlive: -1, Control: func(_, _ string, c syscall.RawConn) (err error) {
		cerr := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1) })
		return errors.Join(cerr, err)
	}}
	only6.SetMultipathTCP(false)
	var v6 net.Listener
	if err := a.Client.Do(func() (err error) { v6, err = only6.Listen(t.Context(), "tcp6", "[::]:7102"); return err }); err != nil {
		t.Fatal(err)
	}
	defer v6.Close()
	d.Local = netip.AddrPortFrom(a.ClientAddr4, 7102)
	client, _ = labtest.PairTo(t, d, a.Server, netip.AddrPortFrom(a.ServerAddr4, 7103))
	if one := adopted(t, a.settle(t, a.Client), client); !one.Ambiguous {
		t.Errorf("a listener for IPv6 alone: told %+v", one)
	}
	wantNoFaults(t, a.Programs)
}

// TestAdoptPolicyChange: connections follow the policy, those that the programs saw
// open and those that they did not, and count for who names them.
func TestAdoptPolicyChange(t *testing.T) {
	b := loadertest.New(t, slowPolicy+`
peers: [{name: one, cidrs: [10.91.2.0/24]}]
`)
	loadertest.Need(t, b.Programs, kernel.Adopt)
	a := &adoption{Lab: b.Lab, Programs: b.Programs}
	seen, _ := labtest.Pair(t, a.Lab, 0)
	if err := b.Cgroup.Leave(); err != nil {
		t.Fatal(err)
	}
	old, _ := labtest.Pair(t, a.Lab, 0)
	if err := b.Cgroup.Enter(); err != nil {
		t.Fatal(err)
	}
	told := a.settle(t, a.Client)
	if adopted(t, told, seen).Outcome != loader.Managed || adopted(t, told, old).Outcome != loader.Adopted {
		t.Errorf("told %+v", told)
	}
	wantOpen := func(name string, opened, adopted, released, open uint64) {
		t.Helper()
		c := mustCounters(t, a.Programs, name)
		if c.OpenedOutbound != opened || c.Adopted != adopted || c.Released != released || c.Open() != open {
			t.Errorf("counters of %s: %+v", name, c)
		}
	}
	wantOpen("one", 1, 1, 0, 2)

	b.SetPolicy(t, loadertest.Fast+`  - name: one
    cidrs: [192.0.2.0/24]
`)
	told = a.settle(t, a.Client)
	for _, c := range []*net.TCPConn{seen, old} {
		if one := adopted(t, told, c); one.Outcome != loader.Changed || a.InForce().Peer(one.Policy).Name != "server" {
			t.Errorf("told %+v", one)
		}
		wantOptions(t, "after the change", c, fast)
		labtest.Setsockopt(t, c, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 600)
	}
	wantOptions(t, "held by the new policy", seen, fast)
	wantOpen("one", 1, 1, 2, 0)
	wantOpen("server", 0, 2, 0, 2)

	b.SetPolicy(t, slowPolicy+`
peers: [{name: server, cidrs: [10.91.2.0/24]}]
`)
	told = a.settle(t, a.Client)
	wantOptions(t, "loosened", seen, slow)
	wantOptions(t, "loosened", old, slow)
	// What the application asked for outside the programs' sight came to light.
	if r := a.look(t, a.Client, old).Record; r.App.Idle != 600*time.Second {
		t.Errorf("record %+v", r)
	}
	seen.Close()
	old.Close()
	labtest.Eventually(t, late, func() bool { return mustCounters(t, a.Programs, "server").Open() == 0 }, "none open")
	wantOpen("server", 0, 2, 0, 0)
	wantNoFaults(t, a.Programs)
}
