// SPDX-License-Identifier: Apache-2.0

package prober

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	nl "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
	"github.com/sockhealth/sockhealth/internal/netns"
)

// bed is a lab with the programs that look at its sockets.
type bed struct {
	*lab.Lab
	programs *loader.Programs
}

func newBed(t testing.TB) *bed {
	t.Helper()
	return &bed{Lab: labtest.New(t, lab.Options{}), programs: loadertest.Load(t)}
}

// in runs fn in a namespace and fails the test on an error.
func in(t testing.TB, ns *netns.NS, fn func() error) {
	t.Helper()
	if err := ns.Do(fn); err != nil {
		t.Fatal(err)
	}
}

func sysctlIn(t testing.TB, ns *netns.NS, name, value string) {
	t.Helper()
	in(t, ns, func() error { return os.WriteFile("/proc/sys/net/"+name, []byte(value), 0) })
}

// netstat returns one of the counters of a namespace's TCP (nstat's TcpExt).
func netstat(t testing.TB, ns *netns.NS, name string) (n uint64) {
	t.Helper()
	in(t, ns, func() error {
		b, err := os.ReadFile("/proc/thread-self/net/netstat")
		if err != nil {
			return err
		}
		lines := strings.Split(string(b), "\n")
		i := slices.Index(strings.Fields(lines[0]), name)
		if i < 0 {
			return fmt.Errorf("no %s in %q", name, lines[0])
		}
		n, err = strconv.ParseUint(strings.Fields(lines[1])[i], 10, 64)
		return err
	})
	return n
}

// uplink is one of the client's ways to the router.
type uplink struct {
	dev    string
	own    [2]netip.Addr // the client's addresses, IPv4 and IPv6
	router [2]netip.Addr
}

var (
	first = uplink{
		"eth0",
		[2]netip.Addr{netip.MustParseAddr("10.91.1.2"), netip.MustParseAddr("fd91:0:0:1::2")},
		[2]netip.Addr{netip.MustParseAddr("10.91.1.1"), netip.MustParseAddr("fd91:0:0:1::1")},
	}
	second = uplink{
		"eth1",
		[2]netip.Addr{netip.MustParseAddr("10.91.210.2"), netip.MustParseAddr("fd91:0:0:d2::2")},
		[2]netip.Addr{netip.MustParseAddr("10.91.210.1"), netip.MustParseAddr("fd91:0:0:d2::1")},
	}
)

func version(v6 bool) int {
	if v6 {
		return 1
	}
	return 0
}

// addUplink gives the client its second way to the router, with no route yet.
func addUplink(t testing.TB, b *bed) {
	t.Helper()
	in(t, b.Client, func() error {
		return nl.LinkAdd(&nl.Veth{
			LinkAttrs: nl.LinkAttrs{Name: second.dev}, PeerName: "net210", PeerNamespace: nl.NsFd(b.Router.FD()),
		})
	})
	end := func(name string, addrs [2]netip.Addr) func() error {
		return func() error {
			link, err := nl.LinkByName(name)
			if err != nil {
				return err
			}
			for i, bits := range []int{24, 64} {
				addr := &nl.Addr{IPNet: &net.IPNet{IP: addrs[i].AsSlice(), Mask: net.CIDRMask(bits, addrs[i].BitLen())}}
				if addrs[i].Is6() {
					addr.Flags = unix.IFA_F_NODAD
				}
				if err := nl.AddrAdd(link, addr); err != nil {
					return err
				}
			}
			return nl.LinkSetUp(link)
		}
	}
	in(t, b.Client, end(second.dev, second.own))
	in(t, b.Router, end("net210", second.router))
	labtest.Eventually(t, time.Minute, func() bool {
		up := false
		in(t, b.Client, func() error {
			link, err := nl.LinkByName(second.dev)
			up = err == nil && link.Attrs().OperState == nl.OperUp
			return err
		})
		return up
	}, "carrier of the second uplink")
}

// defaultRoute is the default route through some uplinks, as many next hops.
func defaultRoute(v6 bool, table int, through ...uplink) *nl.Route {
	i := version(v6)
	bits := first.own[i].BitLen()
	r := &nl.Route{Dst: &net.IPNet{IP: make(net.IP, bits/8), Mask: net.CIDRMask(0, bits)}, Table: table}
	if len(through) == 1 {
		r.LinkIndex, r.Gw = index(through[0].dev), through[0].router[i].AsSlice()
		return r
	}
	for _, u := range through {
		r.MultiPath = append(r.MultiPath, &nl.NexthopInfo{LinkIndex: index(u.dev), Gw: u.router[i].AsSlice()})
	}
	return r
}

// index returns the index of a device in the thread's namespace, 0 for none.
func index(dev string) int {
	link, err := nl.LinkByName(dev)
	if err != nil {
		return 0
	}
	return link.Attrs().Index
}

// reroute replaces the client's default route; through nothing takes it away.
func reroute(t testing.TB, b *bed, v6 bool, through ...uplink) {
	t.Helper()
	in(t, b.Client, func() error {
		all := defaultRoute(v6, 0, first)
		if err := nl.RouteDel(&nl.Route{Dst: all.Dst}); err != nil || len(through) == 0 {
			return err
		}
		return nl.RouteAdd(defaultRoute(v6, 0, through...))
	})
}

// rule makes table 100, with its default route through the second uplink, serve
// the packets that with describes.
func rule(t testing.TB, b *bed, v6 bool, with func(*nl.Rule)) {
	t.Helper()
	in(t, b.Client, func() error {
		if err := nl.RouteReplace(defaultRoute(v6, 100, second)); err != nil {
			return err
		}
		r := nl.NewRule()
		r.Table, r.Family = 100, []int{unix.AF_INET, unix.AF_INET6}[version(v6)]
		with(r)
		return nl.RuleAdd(r)
	})
}
