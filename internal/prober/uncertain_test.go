// SPDX-License-Identifier: Apache-2.0

package prober

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"

	nl "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/conntrack"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
)

// sure probes and returns whether the way is certain. It probes again where conntrack
// was too busy to tell.
func sure(t *testing.T, p *pair, s *conn.Snapshot) bool {
	t.Helper()
	var sent Sent
	var err error
	labtest.Eventually(t, 4*patience, func() bool {
		sent, err = New().Send(p.bed.Client, s)
		return !errors.Is(sent.Err, conntrack.ErrHeldUp)
	}, "conntrack tells")
	if err != nil || sent.Err != nil {
		t.Fatal(err, sent.Err)
	}
	return sent.Certain
}

// TestGivenLabel: a flow label that was set for the socket makes a segment of ours
// uncertain where the kernel may send with another one.
func TestGivenLabel(t *testing.T) {
	b := newBed(t)
	c := connect(t, b, kinds[1])
	for _, keeps := range []bool{false, true} {
		for _, label := range []uint32{0, 0x12345} {
			s := c.snapshot(t)
			s.FlowLabel = label
			p := New()
			p.keepsLabels = keeps
			sent, err := p.Send(b.Client, s)
			if want := keeps || label == 0; err != nil || sent.Certain != want || sent.Multipath {
				t.Errorf("label %#x, kept: %v: %+v (%v), want certain: %v", label, keeps, sent, err, want)
			}
		}
	}
}

// Two next hops through one device: the kernel chooses by the ports, and a probe
// cannot be told to go the same way. It is sent all the same, and said to be
// uncertain. With one next hop a device it is certain as long as the device is known.
func TestSeveralNextHops(t *testing.T) {
	for _, k := range kinds[:2] {
		t.Run(k.name, func(t *testing.T) {
			b := newBed(t)
			addUplink(t, b)
			i := version(k.v6)
			third := first // a second router on the first link
			third.router = [2]netip.Addr{netip.MustParseAddr("10.91.1.77"), netip.MustParseAddr("fd91:0:0:1::77")}
			in(t, b.Router, func() error {
				link, err := nl.LinkByName("net1")
				if err != nil {
					return err
				}
				bits := []int{24, 64}[i]
				addr := &nl.Addr{IPNet: &net.IPNet{IP: third.router[i].AsSlice(), Mask: net.CIDRMask(bits, third.router[i].BitLen())}}
				if k.v6 {
					addr.Flags = unix.IFA_F_NODAD
				}
				return nl.AddrAdd(link, addr)
			})
			for _, tt := range []struct {
				name    string
				through []uplink
				want    bool
				unknown bool // where no device is known
			}{
				{"one", []uplink{first}, true, true},
				{"two on one device", []uplink{first, third}, false, false},
				{"one on each of two devices", []uplink{first, second}, true, false},
			} {
				reroute(t, b, k.v6, tt.through...)
				k.local = first.own[i]
				p := connect(t, b, k)
				s := p.snapshot(t)
				if s.DstDev == 0 {
					t.Fatalf("%s: no cached route", tt.name)
				}
				p.silent(t)
				if got := sure(t, p, s); got != tt.want {
					t.Errorf("%s: certain %t, want %t", tt.name, got, tt.want)
				}
				p.answered(t)
				if got := sure(t, p, with(s, func(s *conn.Snapshot) { s.DstDev = 0 })); got != tt.unknown {
					t.Errorf("%s, no device known: certain %t, want %t", tt.name, got, tt.unknown)
				}
			}
		})
	}
}

// A service's address leads to another host than the route to it: the probe is
// translated and routed as the connection's packets are.
func TestFollowsTranslation(t *testing.T) {
	b := newBed(t)
	addUplink(t, b)
	backend := second.router[0]
	labtest.Translate(t, b.Client, 7103, backend.As4())
	ln := labtest.Listen(t, b.Router, netip.AddrPortFrom(backend, 7103))
	p := dialTo(t, b, netip.AddrPortFrom(b.ServerAddr4, 7103), ln)
	s := p.snapshot(t)
	var cached string
	in(t, b.Client, func() error {
		link, err := nl.LinkByIndex(int(s.DstDev))
		if err == nil {
			cached = link.Attrs().Name
		}
		return err
	})
	if cached != first.dev {
		t.Errorf("the cached route leads by %s: nothing is tried", cached)
	}
	p.silent(t)
	ear := listenIn(t, b.Client)
	if !sure(t, p, s) {
		t.Error("the way is not certain")
	}
	h, ok := ear.probe(t, s.Local, netip.AddrPortFrom(backend, 7103), s.SndUna)
	in(t, b.Client, func() error {
		if !ok || h.dev != index(second.dev) {
			t.Errorf("heard %t, left by device %d, want %s", ok, h.dev, second.dev)
		}
		return nil
	})
	p.answered(t)
	p.exchange(t)
}

// A redirected connection ends at this host, and so does its probe.
func TestFollowsRedirect(t *testing.T) {
	b := newBed(t)
	labtest.Redirect(t, b.Client, 7102, 15001)
	ln := labtest.Listen(t, b.Client, netip.MustParseAddrPort("0.0.0.0:15001"))
	p := dialTo(t, b, netip.AddrPortFrom(b.ServerAddr4, 7102), ln)
	s := p.snapshot(t)
	p.silent(t)
	if !sure(t, p, s) {
		t.Error("the way is not certain")
	}
	p.answered(t)
	p.exchange(t)
}

func dialTo(t *testing.T, b *bed, to netip.AddrPort, ln *net.TCPListener) *pair {
	t.Helper()
	p := &pair{bed: b}
	p.client = labtest.Dial(t, b.Client, netip.AddrPort{}, to)
	p.server = labtest.Accept(t, ln)
	p.local, p.remote = labtest.Addr(p.client.LocalAddr()), labtest.Addr(p.client.RemoteAddr())
	return p
}

// Connections over devices that stand on others.
func TestStackedDevices(t *testing.T) {
	const name = "over0"
	for kind, make := range map[string]func(parent int) nl.Link{
		"vlan": func(parent int) nl.Link {
			return &nl.Vlan{LinkAttrs: nl.LinkAttrs{Name: name, ParentIndex: parent}, VlanId: 7}
		},
		"macvlan": func(parent int) nl.Link {
			return &nl.Macvlan{LinkAttrs: nl.LinkAttrs{Name: name, ParentIndex: parent}, Mode: nl.MACVLAN_MODE_BRIDGE}
		},
		"ipvlan": func(parent int) nl.Link {
			return &nl.IPVlan{LinkAttrs: nl.LinkAttrs{Name: name, ParentIndex: parent}, Mode: nl.IPVLAN_MODE_L2}
		},
	} {
		t.Run(kind, func(t *testing.T) {
			b := newBed(t)
			own, router := netip.MustParsePrefix("10.91.211.2/24"), netip.MustParsePrefix("10.91.211.1/24")
			in(t, b.Client, func() error { return stack(t, make(index(first.dev)), own) })
			in(t, b.Router, func() error {
				if kind == "vlan" {
					return stack(t, make(index("net1")), router)
				}
				link, err := nl.LinkByName("net1")
				if err != nil {
					return err
				}
				return nl.AddrAdd(link, address(router))
			})
			in(t, b.Client, func() error {
				to := nl.NewIPNet(b.ServerAddr4.AsSlice())
				return nl.RouteAdd(&nl.Route{Dst: to, LinkIndex: index(name), Gw: router.Addr().AsSlice()})
			})
			p := connect(t, b, kinds[0])
			s := p.snapshot(t)
			in(t, b.Client, func() error {
				if i := index(name); uint32(i) != s.DstDev {
					t.Errorf("the connection leaves by device %d, not by %s", s.DstDev, name)
				}
				return nil
			})
			p.silent(t)
			if !sure(t, p, s) {
				t.Error("the way is not certain")
			}
			p.answered(t)
			p.exchange(t)
		})
	}
}

func address(p netip.Prefix) *nl.Addr {
	return &nl.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}}
}

// stack adds a device with an address. Its kind may be a module that is not there.
func stack(t *testing.T, link nl.Link, a netip.Prefix) error {
	err := nl.LinkAdd(link)
	if errors.Is(err, unix.EOPNOTSUPP) && os.Getenv("SOCKHEALTH_VM") == "" {
		t.Skipf("this kernel has no %s (make vm has one)", link.Type())
	}
	if err != nil {
		return err
	}
	if link, err = nl.LinkByName(link.Attrs().Name); err != nil {
		return err
	}
	return errors.Join(nl.AddrAdd(link, address(a)), nl.LinkSetUp(link))
}

// A connection that is bound to a device stays there, whatever the routes prefer.
func TestFollowsBoundDevice(t *testing.T) {
	for _, k := range kinds[:2] {
		t.Run(k.name, func(t *testing.T) {
			b := newBed(t)
			addUplink(t, b)
			in(t, b.Client, func() error {
				r := defaultRoute(k.v6, 0, second)
				r.Priority = 2000 // only for those who ask for that device
				return nl.RouteAdd(r)
			})
			k.local = second.own[version(k.v6)]
			k.setup = func(fd int) error { return unix.BindToDevice(fd, second.dev) }
			p := connect(t, b, k)
			s := &conn.Snapshot{}
			p.exchange(t)
			in(t, b.Client, func() error {
				labtest.Eventually(t, patience, func() bool {
					var err error
					*s, err = b.programs.Look(p.local, p.remote, uint32(index(second.dev)))
					return err == nil && !s.InFlight()
				}, "the last acknowledgment")
				return nil
			})
			for _, s := range []*conn.Snapshot{s, with(s, func(s *conn.Snapshot) { s.DstDev = 0 })} {
				if got := leavesBy(t, p, s); got != second.dev {
					t.Errorf("cached device %d: left by %s, want %s", s.DstDev, got, second.dev)
				}
				if !sure(t, p, s) {
					t.Error("the way is not certain")
				}
			}
		})
	}
}
