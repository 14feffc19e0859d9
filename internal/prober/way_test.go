// SPDX-License-Identifier: Apache-2.0

package prober

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	nl "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
)

// leavesBy returns the name of the device by which the client sends the probe.
func leavesBy(t *testing.T, p *pair, s *conn.Snapshot) string {
	t.Helper()
	ear := listenIn(t, p.bed.Client)
	defer ear.close()
	send(t, p, s)
	h, ok := ear.probe(t, s.Local, s.Remote, s.SndUna)
	if !ok || !h.out {
		t.Fatalf("the probe was not heard to leave")
	}
	for _, u := range []uplink{first, second} {
		var i int
		in(t, p.bed.Client, func() error { i = index(u.dev); return nil })
		if i == h.dev {
			return u.dev
		}
	}
	t.Fatalf("the probe left by device %d", h.dev)
	return ""
}

// with returns a copy of a snapshot, changed.
func with(s *conn.Snapshot, change func(*conn.Snapshot)) *conn.Snapshot {
	c := *s
	change(&c)
	return &c
}

func TestFollowsMark(t *testing.T) {
	const mark = 0x2a
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			b := newBed(t)
			addUplink(t, b)
			rule(t, b, k.v6, func(r *nl.Rule) { r.Mark = mark })
			k.setup = func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, mark) }
			p := connect(t, b, k)
			s := p.snapshot(t)
			alone := with(s, func(s *conn.Snapshot) { s.DstDev = 0 })
			unmarked := with(alone, func(s *conn.Snapshot) { s.Mark = 0 })
			for what, tt := range map[string]struct {
				s    *conn.Snapshot
				want string
			}{"as it is": {s, second.dev}, "by its mark alone": {alone, second.dev}, "without": {unmarked, first.dev}} {
				if got := leavesBy(t, p, tt.s); got != tt.want {
					t.Errorf("%s: left by %s, want %s", what, got, tt.want)
				}
			}
			p.exchange(t)
		})
	}
}

func TestFollowsTypeOfService(t *testing.T) {
	const tos = 0x10 // the only kind of value that the rules of every kernel take
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			b := newBed(t)
			addUplink(t, b)
			rule(t, b, k.v6, func(r *nl.Rule) { r.Tos = tos })
			p := connect(t, b, k)
			s := p.snapshot(t)
			s.DstDev = 0
			for value, want := range map[uint8]string{0: first.dev, tos: second.dev, tos | ecnBits: second.dev} {
				s.TOS = value
				if got := leavesBy(t, p, s); got != want {
					t.Errorf("type of service %#x: left by %s, want %s", value, got, want)
				}
			}
		})
	}
}

func TestFollowsSource(t *testing.T) {
	for _, k := range kinds[:2] {
		t.Run(k.name, func(t *testing.T) {
			b := newBed(t)
			addUplink(t, b)
			k.local = second.own[version(k.v6)]
			rule(t, b, k.v6, func(r *nl.Rule) { r.Src = nl.NewIPNet(k.local.AsSlice()) })
			p := connect(t, b, k)
			s := p.snapshot(t)
			for _, s := range []*conn.Snapshot{s, with(s, func(s *conn.Snapshot) { s.DstDev = 0 })} {
				if got := leavesBy(t, p, s); got != second.dev {
					t.Errorf("device %d: left by %s, want %s", s.DstDev, got, second.dev)
				}
			}
			elsewhere := with(s, func(s *conn.Snapshot) {
				s.DstDev, s.Local = 0, netip.AddrPortFrom(first.own[version(k.v6)], s.Local.Port())
			})
			if got := leavesBy(t, p, elsewhere); got != first.dev {
				t.Errorf("another source left by %s, want %s", got, first.dev)
			}
		})
	}
}

// Connections of one pair of hosts, spread over two uplinks by their ports.
func TestFollowsMultipath(t *testing.T) {
	for _, k := range kinds[:2] {
		t.Run(k.name, func(t *testing.T) {
			b := newBed(t)
			addUplink(t, b)
			sysctlIn(t, b.Client, "ipv4/fib_multipath_hash_policy", "1")
			sysctlIn(t, b.Client, "ipv6/fib_multipath_hash_policy", "1")
			reroute(t, b, k.v6, first, second)
			// One address on lo serves both uplinks, or newer kernels let the
			// source choose between them.
			k.local = [2]netip.Addr{netip.MustParseAddr("10.91.99.1"), netip.MustParseAddr("fd91:0:0:63::1")}[version(k.v6)]
			own(t, b, k.local)
			used := map[uint32]int{}
			for range 24 {
				p := connect(t, b, k)
				s := p.snapshot(t)
				used[s.DstDev]++
				var want string
				in(t, b.Client, func() error {
					link, err := nl.LinkByIndex(int(s.DstDev))
					want = link.Attrs().Name
					return err
				})
				if got := leavesBy(t, p, s); got != want {
					t.Errorf("connection by %s, its probe by %s", want, got)
				}
			}
			if len(used) != 2 {
				t.Errorf("all connections took one uplink, nothing was tried: %v", used)
			}
		})
	}
}

// own gives the client a further address, which the router knows to find.
func own(t *testing.T, b *bed, a netip.Addr) {
	t.Helper()
	in(t, b.Client, func() error {
		lo, err := nl.LinkByName("lo")
		if err != nil {
			return err
		}
		addr := &nl.Addr{IPNet: nl.NewIPNet(a.AsSlice())}
		if a.Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		return nl.AddrAdd(lo, addr)
	})
	in(t, b.Router, func() error {
		return nl.RouteAdd(&nl.Route{
			Dst: nl.NewIPNet(a.AsSlice()), LinkIndex: index("net1"), Gw: first.own[version(a.Is6())].AsSlice(),
		})
	})
}

// A cached device that no route leads through any more is not used: IPv4 would
// take the peer for a neighbour on that link and lose the probe.
func TestOutdatedDeviceIsNotUsed(t *testing.T) {
	b := newBed(t)
	addUplink(t, b)
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			p := connect(t, b, k)
			s := p.snapshot(t)
			in(t, b.Client, func() error { s.DstDev = uint32(index(second.dev)); return nil })
			for _, dev := range []uint32{s.DstDev, 9999} {
				s.DstDev = dev
				if got := leavesBy(t, p, s); got != first.dev {
					t.Errorf("left by %s, want %s", got, first.dev)
				}
				if err := New().Route(b.Client, s); err != nil {
					t.Errorf("Route = %v, want nil", err)
				}
				// A socket that is bound to that device has no other way.
				s.Ifindex = dev
				for name, ask := range both {
					if err := ask(b, s); !errors.Is(err, ErrNoRoute) {
						t.Errorf("bound to device %d: %s = %v, want ErrNoRoute", dev, name, err)
					}
				}
				s.Ifindex = 0
			}
		})
	}
}

var both = map[string]func(*bed, *conn.Snapshot) error{
	"Send":  func(b *bed, s *conn.Snapshot) error { _, err := New().Send(b.Client, s); return err },
	"Route": func(b *bed, s *conn.Snapshot) error { return New().Route(b.Client, s) },
}

func TestNoRoute(t *testing.T) {
	labtest.NoLeak(t)
	faults := map[string]func(t *testing.T, b *bed, v6 bool){
		"route withdrawn": func(t *testing.T, b *bed, v6 bool) { reroute(t, b, v6) },
		"blackhole":       func(t *testing.T, b *bed, v6 bool) { refuse(t, b, v6, unix.RTN_BLACKHOLE) },
		"unreachable":     func(t *testing.T, b *bed, v6 bool) { refuse(t, b, v6, unix.RTN_UNREACHABLE) },
		"device down": func(t *testing.T, b *bed, _ bool) {
			in(t, b.Client, func() error { return nl.LinkSetDown(&nl.Device{LinkAttrs: nl.LinkAttrs{Index: index(first.dev)}}) })
		},
	}
	for what, fault := range faults {
		for _, k := range kinds {
			t.Run(what+" "+k.name, func(t *testing.T) {
				b := newBed(t)
				p := connect(t, b, k)
				s := p.snapshot(t)
				if err := New().Route(b.Client, s); err != nil {
					t.Fatalf("before the fault: Route = %v", err)
				}
				fault(t, b, k.v6)
				for name, ask := range both {
					for _, dev := range []uint32{s.DstDev, 0} {
						err := ask(b, with(s, func(s *conn.Snapshot) { s.DstDev = dev }))
						if !errors.Is(err, ErrNoRoute) {
							t.Errorf("device %d: %s = %v, want ErrNoRoute", dev, name, err)
						}
					}
				}
			})
		}
	}
}

// refuse puts a route to the server that refuses in place of the default one.
func refuse(t *testing.T, b *bed, v6 bool, how int) {
	t.Helper()
	reroute(t, b, v6)
	to := []netip.Addr{b.ServerAddr4, b.ServerAddr6}[version(v6)]
	in(t, b.Client, func() error {
		return nl.RouteAdd(&nl.Route{Dst: nl.NewIPNet(to.AsSlice()), Type: how})
	})
}

func TestRouteSendsNothing(t *testing.T) {
	b := newBed(t)
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			p := connect(t, b, k)
			s := p.snapshot(t)
			p.silent(t) // the last ACK of the exchange has gone
			ear := listenIn(t, b.Client)
			for range 5 {
				if err := New().Route(b.Client, s); err != nil {
					t.Fatal(err)
				}
			}
			send(t, p, s)
			sent := 0
			for h, ok := ear.next(t, patience, p.local, p.remote); ok; h, ok = ear.next(t, 50*time.Millisecond, p.local, p.remote) {
				if h.out {
					sent++
				}
			}
			if sent != 1 {
				t.Errorf("%d segments sent by five looks and one probe", sent)
			}
		})
	}
}

// A transparent proxy speaks with another host's address.
func TestForeignSource(t *testing.T) {
	b := newBed(t)
	addUplink(t, b)
	in(t, b.Client, func() error {
		for _, v6 := range []bool{false, true} {
			r := defaultRoute(v6, 0, second)
			r.Priority = 2000 // only for those who ask for that device
			if err := nl.RouteAdd(r); err != nil {
				return err
			}
		}
		return nil
	})
	for i, source := range []string{"10.91.99.9:40000", "[fd91:0:0:63::9]:40000"} {
		p := connect(t, b, kinds[i])
		s := p.snapshot(t)
		s.Local = netip.MustParseAddrPort(source)
		for _, dev := range []string{first.dev, second.dev, ""} {
			in(t, b.Client, func() error { s.DstDev = uint32(index(dev)); return nil })
			err := New().Route(b.Client, s)
			if s.Local.Addr().Is4() && !labtest.Has(t, kernel.ForeignSource, err) {
				if !errors.Is(err, ErrNoRoute) {
					t.Errorf("from %s by %q: Route = %v", source, dev, err)
				}
				continue
			}
			if err != nil {
				t.Errorf("from %s by %q: Route = %v", source, dev, err)
			}
			want := dev
			if want == "" {
				want = first.dev
			}
			if got := leavesBy(t, p, s); got != want {
				t.Errorf("from %s by %q: left by %s", source, dev, got)
			}
		}
	}
}

// A connection inside one host leaves by lo.
func TestStaysOnThisHost(t *testing.T) {
	b := newBed(t)
	for i, own := range []netip.Addr{b.ClientAddr4, b.ClientAddr6, netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()} {
		t.Run(own.String(), func(t *testing.T) {
			p := &pair{bed: b}
			p.client, p.server = labtest.PairTo(t, labtest.Dialer{NS: b.Client}, b.Client, netip.AddrPortFrom(own, 0))
			p.local, p.remote = labtest.Addr(p.client.LocalAddr()), labtest.Addr(p.client.RemoteAddr())
			s := p.snapshot(t)
			if s.DstDev != loopback {
				t.Fatalf("case %d leaves by device %d", i, s.DstDev)
			}
			p.silent(t)
			if err := New().Route(b.Client, s); err != nil {
				t.Errorf("Route = %v", err)
			}
			send(t, p, s)
			p.answered(t)
			p.exchange(t)
		})
	}
}
