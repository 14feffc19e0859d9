// SPDX-License-Identifier: Apache-2.0

package coverage

import (
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/policy"
)

// The ids of the policy's entries, in its order.
const decidePolicy = `version: 1
peers:
  - {name: out, cidrs: [10.1.0.0/16], ports: [7100], direction: outbound}
  - {name: in, cidrs: [10.1.0.0/16], ports: [7100], direction: inbound, user_timeout: 20s}
  - {name: kernels, cidrs: [10.1.0.0/16], ports: [2049], direction: outbound, kernel_sockets: manage}
`

func inForce(t *testing.T) *loader.InForce {
	t.Helper()
	p, err := policy.Parse("policy.yaml", []byte(decidePolicy))
	if err != nil {
		t.Fatal(err)
	}
	return loader.NewInForce(p, map[uint32]int{1: 0, 2: 1})
}

// What one look amounts to.
func TestDecide(t *testing.T) {
	force := inForce(t)
	wanted := force.Policy.Peers[0].Options
	drifted, provoked, other, roomy := wanted, wanted, wanted, wanted
	roomy.Count = 20
	drifted.UserTimeout = 0
	provoked.Idle = time.Second
	other.Idle = 3 * time.Second
	const kernels = 700 // the port that the kernel's own are from
	in, out := policy.Directions(conn.Inbound), policy.Directions(conn.Outbound)
	good := conn.Record{Policy: 1, Direction: conn.Outbound, Policed: wanted, Effective: wanted}
	with := func(change func(*conn.Record)) *conn.Record {
		r := good
		change(&r)
		return &r
	}
	limit := func(to time.Duration) conn.Options {
		o := wanted
		o.RTOMax = to
		return o
	}
	capped := with(func(r *conn.Record) { r.Effective.RTOMax = time.Second })
	for _, tc := range []struct {
		name     string
		local    uint16
		remote   uint16
		inferred policy.Directions
		set      conn.Options
		record   *conn.Record
		want     string // policy/reason, "": not named
		guess    bool
	}{
		{"bounded", 40000, 7100, out, wanted, &good, "out/", false},
		{"the kernel's own", kernels, 7100, out, conn.Options{}, nil, "out/kernel", false},
		{"the kernel's own, managed", kernels, 2049, out, conn.Options{}, nil, "kernels/older", false},
		{"no record", 40000, 7100, out, conn.Options{}, nil, "out/older", false},
		{"inbound, no record", 7100, 40000, in, conn.Options{}, nil, "in/older", false},
		{"the other way", 7100, 40000, out, conn.Options{}, nil, "", false},
		{"another port", 40000, 7200, out, conn.Options{}, nil, "", false},
		{"either way, one entry", 7100, 40000, policy.Both, conn.Options{}, nil, "in/older", true},
		{"either way, the tighter", 7100, 7100, policy.Both, conn.Options{}, nil, "out/older", true},
		{"the record knows better than a listener", 7100, 7100, in, wanted, &good, "out/", false},
		{"an adopted one does not", 7100, 40000, in, wanted, with(func(r *conn.Record) { r.Adopted = true }), "in/pending", false},
		{"a listener that is gone", 7100, 40000, out, wanted, with(func(r *conn.Record) {
			r.Adopted, r.Direction, r.Policy, r.Policed = true, conn.Inbound, 2, force.Policy.Peers[1].Options
		}), "in/", false},
		{"a listener that came since", 7100, 40000, in, wanted, with(func(r *conn.Record) {
			r.Adopted, r.Ambiguous = true, true
		}), "in/pending", false},
		{"adopted as a client, and not certain now", 7100, 40000, policy.Both, wanted, with(func(r *conn.Record) { r.Adopted = true }), "", false},
		{"not certain then, and a client now", 7100, 40000, out, wanted, with(func(r *conn.Record) {
			r.Adopted, r.Ambiguous, r.Policy, r.Policed = true, true, 2, force.Policy.Peers[1].Options
		}), "in/", true},
		{"drifted", 40000, 7100, out, drifted, &good, "out/options_drifted", false},
		{"drifted and pending", 40000, 7100, out, drifted, with(func(r *conn.Record) { r.Pending = true }), "out/options_drifted", false},
		{"provoked", 40000, 7100, out, provoked, with(func(r *conn.Record) { r.Provoked = true }), "out/", false},
		{"provoked by nobody", 40000, 7100, out, provoked, &good, "out/options_drifted", false},
		{"with room for what was provoked", 40000, 7100, out, roomy, with(func(r *conn.Record) { r.Room = 20 }), "out/", false},
		{"with more than that", 40000, 7100, out, roomy, with(func(r *conn.Record) { r.Room = 19 }), "out/options_drifted", false},
		{"retransmissions as rare as wanted", 40000, 7100, out, limit(time.Second), capped, "out/", false},
		{"more often, by the application", 40000, 7100, out, limit(time.Second / 2), capped, "out/", false},
		{"as rare as the kernel's own", 40000, 7100, out, limit(0), capped, "out/options_drifted", false},
		{"rarer", 40000, 7100, out, limit(2 * time.Second), capped, "out/options_drifted", false},
		{"pending", 40000, 7100, out, wanted, with(func(r *conn.Record) { r.Pending = true }), "out/pending", false},
		{"releasing", 40000, 7100, out, wanted, with(func(r *conn.Record) { r.Releasing = true }), "out/pending", false},
		{"of another policy", 40000, 7100, out, wanted, with(func(r *conn.Record) { r.Policy = 2 }), "out/pending", false},
		{"of a policy that is gone", 40000, 7100, out, wanted, with(func(r *conn.Record) { r.Policy = 3 }), "out/pending", false},
		{"of an older form of the policy", 40000, 7100, out, wanted, with(func(r *conn.Record) { r.Policed = other }), "out/pending", false},
		{"tighter by its application", 40000, 7100, out, other, with(func(r *conn.Record) { r.Effective = other }), "out/", false},
	} {
		s := conn.Snapshot{ID: conn.ID{
			Family: unix.AF_INET, Local: netip.AddrPortFrom(netip.MustParseAddr("10.2.0.1"), tc.local),
			Remote: netip.AddrPortFrom(netip.MustParseAddr("10.1.0.1"), tc.remote),
		}, Options: tc.set, Kernel: tc.local == kernels}
		if tc.record != nil {
			s.HasRecord, s.Record = true, *tc.record
		}
		f, _, ok := decide(force, tc.inferred, &s)
		got := ""
		if ok {
			got = f.Policy + "/" + string(f.Reason)
		}
		if got != tc.want || f.Uncertain != tc.guess {
			t.Errorf("%s: got %q, uncertain %t, want %q, %t", tc.name, got, f.Uncertain, tc.want, tc.guess)
		}
	}
}

// Why a socket has no record, as far as it tells itself.
func TestUnrecorded(t *testing.T) {
	for want, s := range map[Reason]conn.Snapshot{
		MPTCP:   {MPTCP: true, Kernel: true}, // the kernel's own, as every subflow is
		Orphan:  {Orphan: true, MD5OrAO: true, Kernel: true},
		Kernel:  {Kernel: true},
		Repair:  {Repair: true, MD5OrAO: true, Kernel: true},
		MD5OrAO: {MD5OrAO: true, Kernel: true},
		Older:   {},
	} {
		if got := Unrecorded(&s, new(policy.Peer)); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		managed := want
		if want == Kernel {
			managed = Older
		}
		if got := Unrecorded(&s, &policy.Peer{KernelSockets: true}); got != managed {
			t.Errorf("with the kernel's managed: got %s, want %s", got, managed)
		}
	}
}
