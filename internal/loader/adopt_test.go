// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sockhealth/sockhealth/internal/conn"
)

func TestDecodeAdoption(t *testing.T) {
	row := adoptShAdoption{
		Cookie: 71, Local: netip.MustParseAddr("::ffff:10.91.1.2").As16(), Remote: netip.MustParseAddr("fd91::2").As16(),
		LocalPort: 40122, RemotePort: 7100, Netns: 5, Policy: 3, BoundDev: 2,
		State: 8, Family: 10, Direction: 2, Outcome: uint8(Changed), Wait: uint8(WaitWindow),
		Flags: uint8(adoptShRecordFlagsSH_ADOPTED | adoptShRecordFlagsSH_AMBIGUOUS | adoptShRecordFlagsSH_PENDING),
	}
	want := Adoption{
		ID: conn.ID{
			Netns: 4026531840, Family: 10, Ifindex: 2, Cookie: 71,
			Local: netip.MustParseAddrPort("10.91.1.2:40122"), Remote: netip.MustParseAddrPort("[fd91::2]:7100"),
		},
		State: conn.CloseWait, Policy: 3, Direction: conn.Inbound,
		Outcome: Changed, Wait: WaitWindow, Adopted: true, Ambiguous: true,
	}
	encode := func(r adoptShAdoption) []byte {
		b, err := binary.Append(nil, binary.NativeEndian, &r)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	got, err := decodeAdoption(encode(row), 4026531840)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for what, change := range map[string]func(*adoptShAdoption){
		"no outcome":         func(r *adoptShAdoption) { r.Outcome = 0 },
		"an unknown outcome": func(r *adoptShAdoption) { r.Outcome = uint8(outcomeListener) + 1 },
		"an unknown refusal": func(r *adoptShAdoption) { r.Refusal = uint8(RefusalError) + 1 },
		"an unknown wait":    func(r *adoptShAdoption) { r.Wait = uint8(WaitError) + 1 },
	} {
		bad := row
		change(&bad)
		if _, err := decodeAdoption(encode(bad), 1); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
	if _, err := decodeAdoption(encode(row)[:40], 1); err == nil {
		t.Error("cut short: no error")
	}
}

// Every word has its own name.
func TestAdoptionWords(t *testing.T) {
	seen := make(map[string]bool)
	check := func(name string) {
		if name == "" || seen[name] {
			t.Errorf("name %q", name)
		}
		seen[name] = true
	}
	for o := Managed; o <= Refused; o++ {
		check(o.String())
	}
	for r := RefusalMPTCP; r <= RefusalError; r++ {
		check("refused: " + r.String())
	}
	for w := WaitNone; w <= WaitError; w++ {
		check("waits for: " + w.String())
	}
	for got, want := range map[string]string{
		Outcome(0).String(): "outcome_0", Outcome(99).String(): "outcome_99", Refusal(99).String(): "refusal_99", Wait(99).String(): "wait_99",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// What a pass has to know of a namespace is what the kernel can be told.
func TestReadPass(t *testing.T) {
	p, err := readPass()
	if err != nil {
		t.Fatal(err)
	}
	if p.PortLo == 0 || p.PortHi < p.PortLo || p.IdleS == 0 || p.IntervalS == 0 || p.Count == 0 {
		t.Errorf("%+v", p)
	}
	if _, err := sysctl("ip_local_port_range", 1); err == nil {
		t.Error("two numbers taken for one")
	}
	if _, err := sysctl("no_such_setting", 1); err == nil {
		t.Error("no error of a setting that is not there")
	}
}
