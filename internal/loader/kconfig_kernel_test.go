// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
)

// members are those of the kernel's structs, by the struct's name.
type members = map[string][]string

// optional is what the programs read of the kernel that is not there where an option
// of its build is off, by that option.
var optional = map[string]members{
	"CONFIG_IPV6": {
		"sock_common": {"skc_v6_daddr", "skc_v6_rcv_saddr"},
		"inet_sock":   {"pinet6"},
		"ipv6_pinfo":  {"flow_label", "tclass"},
	},
	"CONFIG_MPTCP":            {"tcp_sock": {"is_mptcp"}},
	"CONFIG_TCP_MD5SIG":       {"tcp_sock": {"md5sig_info"}},
	"CONFIG_TCP_AO":           {"tcp_sock": {"ao_info"}},
	"CONFIG_XFRM":             {"net": {"xfrm"}},
	"CONFIG_SOCK_CGROUP_DATA": {"sock_cgroup_data": {"cgroup"}},
}

// TestBuiltWithout: a kernel that was built without an option has all that it has with
// it, but for what needs the option. The members are taken out of the types of this
// kernel; what is left stays where it is, so that the programs load, and run, here.
func TestBuiltWithout(t *testing.T) {
	plain := loadertest.Load(t)
	gone := make(members)
	for _, option := range slices.Sorted(maps.Keys(optional)) {
		for of, names := range optional[option] {
			gone[of] = append(gone[of], names...)
		}
		t.Run(option, func(t *testing.T) { wantAll(t, plain, loadWithout(t, optional[option])) })
	}
	t.Run("all of them", func(t *testing.T) {
		p := loadWithout(t, gone)
		wantAll(t, plain, p)
		wantAtWork(t, p)
	})
}

// loadWithout loads the programs as under a kernel whose types lack members.
func loadWithout(t *testing.T, gone members) *loader.Programs {
	t.Helper()
	types, err := loader.TypesWithout(gone)
	if err != nil {
		t.Fatal(err)
	}
	p, err := loader.Load(types)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("close programs: %v", err)
		}
	})
	return p
}

// wantAll demands of p what the kernel gives to others.
func wantAll(t *testing.T, others, p *loader.Programs) {
	t.Helper()
	for _, f := range append(loader.Features(), kernel.Adopt, kernel.AdoptEvents, kernel.Guard, kernel.RTOCap) {
		if err := p.Lacks(f); err != nil && loadertest.Has(t, others, f) {
			t.Errorf("%s: %v", f, err)
		}
	}
	if err := p.Residents(nil, func(int, uint32) {}); err != nil {
		t.Error(err)
	}
	if err := loader.LoadsConvert(p); err != nil {
		t.Error(err)
	}
}

// wantAtWork demands that a connection of IPv4 is named by the policy, bounded, and
// found for what it is.
func wantAtWork(t *testing.T, p *loader.Programs) {
	t.Helper()
	a := &adoption{Lab: labtest.New(t, lab.Options{}), Programs: p}
	a.setPolicy(t, bothWays)
	cgroup := labtest.Cgroup(t)
	if err := p.Attach(cgroup.Path); err != nil {
		t.Fatal(err)
	}
	labtest.Enter(t, cgroup)
	client, server := labtest.PairTo(t, labtest.Dialer{NS: a.Client}, a.Server, netip.AddrPortFrom(a.ServerAddr4, 0))
	wantOptions(t, "client", client, slow)
	wantOptions(t, "server", server, slow)
	want := labtest.ID(t, a.Client, client)
	if s := a.look(t, a.Client, client); s.ID != want || !s.HasRecord {
		t.Errorf("a look finds %+v, want %+v with a record", s, want)
	} else if s.Cgroup != 0 {
		t.Errorf("a look tells cgroup %d, of a kernel that tells none", s.Cgroup)
	}
	if loadertest.Has(t, p, kernel.Scan) {
		var met []conn.ID
		err := a.Client.Do(func() error {
			return p.Scan(func(s conn.Snapshot) error {
				met = append(met, s.ID)
				return nil
			})
		})
		if err != nil || !slices.Equal(met, []conn.ID{want}) {
			t.Errorf("a walk meets %+v, want %+v; %v", met, want, err)
		}
	}
	wantNoFaults(t, p)
}
