// SPDX-License-Identifier: Apache-2.0

package prober

import (
	"errors"
	"net/netip"
	"os"
	"testing"

	nl "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/conntrack"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
)

// Where rules look at what a raw segment has not, or has otherwise, the table leads
// the connection another way than ours, and none of ours is certain to take it.
func TestRulesByFlow(t *testing.T) {
	const user = 4321
	all := nl.NewRulePortRange(1, 65534)
	for _, k := range kinds[:2] {
		t.Run(k.name, func(t *testing.T) {
			b := newBed(t)
			addUplink(t, b)
			k.setup = func(fd int) error { return unix.Fchown(fd, user, -1) }
			for name, tt := range map[string]struct {
				with func(*nl.Rule)
				want bool
			}{
				"protocol":         {func(r *nl.Rule) { r.IPProto = unix.IPPROTO_TCP }, false},
				"destination port": {func(r *nl.Rule) { r.Dport = all }, false},
				"source port":      {func(r *nl.Rule) { r.Sport = all }, false},
				"user":             {func(r *nl.Rule) { r.UIDRange = nl.NewRuleUIDRange(user, user) }, false},
				"another user":     {func(r *nl.Rule) { r.UIDRange = nl.NewRuleUIDRange(1, user-1) }, true},
				"destination": {func(r *nl.Rule) {
					r.Dst = nl.NewIPNet([]netip.Addr{b.ServerAddr4, b.ServerAddr6}[version(k.v6)].AsSlice())
				}, true},
			} {
				rule(t, b, k.v6, tt.with)
				p := connect(t, b, k)
				s := p.snapshot(t)
				if got := sure(t, p, s); got != tt.want {
					t.Errorf("%s: certain %t, want %t", name, got, tt.want)
				}
				var lesser *nl.Route
				in(t, b.Client, func() error {
					lesser = defaultRoute(k.v6, 0, second)
					lesser.Priority = 2000 // only for those who ask for that device
					return nl.RouteAdd(lesser)
				})
				if got := sure(t, p, s); got != tt.want {
					t.Errorf("%s, and the main table has a way by that device: certain %t, want %t", name, got, tt.want)
				}
				in(t, b.Client, func() error { return errors.Join(nl.RouteDel(lesser), unrule(k.v6, tt.with)) })
			}
		})
	}
}

// unrule takes the rule away.
func unrule(v6 bool, with func(*nl.Rule)) error {
	r := nl.NewRule()
	r.Table, r.Family = 100, []int{unix.AF_INET, unix.AF_INET6}[version(v6)]
	with(r)
	return nl.RuleDel(r)
}

// The table has no way by the connection's device any more, which is up: what is
// sent by another may not be what the connection's own packets do.
func TestAnotherDevice(t *testing.T) {
	b := newBed(t)
	addUplink(t, b)
	for _, k := range kinds[:2] {
		p := connect(t, b, k)
		s := p.snapshot(t)
		if !sure(t, p, s) {
			t.Errorf("%s: the way is not certain", k.name)
		}
		in(t, b.Client, func() error { s.DstDev = uint32(index(second.dev)); return nil })
		if sure(t, p, s) {
			t.Errorf("%s: by another device: certain", k.name)
		}
		s.DstDevUp = false // so that the kernel itself looks for another way
		if !sure(t, p, s) {
			t.Errorf("%s: the device is down: not certain", k.name)
		}
	}
}

// Any IPsec policy for what leaves may treat the connection otherwise than ours.
func TestIPsec(t *testing.T) {
	b := newBed(t)
	p := connect(t, b, kinds[0])
	far := &nl.XfrmPolicy{
		Src: nl.NewIPNet(b.ClientAddr4.AsSlice()), Dst: nl.NewIPNet([]byte{192, 0, 2, 1}),
		Dir: nl.XFRM_DIR_OUT, Proto: unix.IPPROTO_TCP, DstPort: 7100,
	}
	for _, with := range []bool{false, true, false} {
		s := p.snapshot(t)
		if got := sure(t, p, s); s.IPsec != with || got == with {
			t.Errorf("policy %t: seen %t, certain %t", with, s.IPsec, got)
		}
		in(t, b.Client, func() error {
			if with {
				return nl.XfrmPolicyDel(far)
			}
			err := nl.XfrmPolicyAdd(far)
			if errors.Is(err, unix.EPROTONOSUPPORT) && os.Getenv("SOCKHEALTH_VM") == "" {
				t.Skip("this kernel has no xfrm_user (make vm has one)")
			}
			return err
		})
	}
}

// Where conntrack does not tell who is at the other end, that is an error, and not
// the answer that nothing is translated.
func TestConntrackFails(t *testing.T) {
	b := newBed(t)
	labtest.Redirect(t, b.Client, 7102, 15001) // conntrack is there
	p := connect(t, b, kinds[0])
	s := p.snapshot(t)
	var w way
	labtest.Eventually(t, 4*patience, func() bool { w = New().wayOf(b.Client, s); return !errors.Is(w.err, conntrack.ErrHeldUp) }, "conntrack tells")
	if w.err != nil {
		t.Errorf("asked in time: %v", w.err)
	}
	gone, err := b.Client.Dup()
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	w = New().wayOf(gone, s)
	if w.err == nil {
		t.Fatal("asked nobody, and no error")
	}
	in(t, b.Client, func() error {
		return w.through(s, s.DstDev, func(k *socket, _ *conn.Snapshot) error {
			if k.sent.Certain || k.sent.Multipath || k.sent.Err == nil {
				t.Errorf("said %+v", k.sent)
			}
			return nil
		})
	})
}
