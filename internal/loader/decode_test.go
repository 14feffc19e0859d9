// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/kernel"
)

var addrs = cmp.Options{cmpopts.EquateComparable(netip.AddrPort{})}

func mapped(s string) [16]byte { return netip.MustParseAddr(s).As16() }

func TestDecodeEvent(t *testing.T) {
	raw := sockopsShEvent{
		TimeNs: 1_500_000_000, Cookie: 71, BytesReceived: 5, BytesAcked: 6, Netns: 4026532281, Policy: 3,
		Local: mapped("10.91.1.2"), Remote: mapped("fd91::2"), LocalPort: 40122, RemotePort: 7100,
		Err: 110, Type: 1, Cause: 3, Family: 2, Direction: 1, Retransmits: 4, ProbesOut: 2,
	}
	b, err := binary.Append(nil, binary.NativeEndian, &raw)
	if err != nil {
		t.Fatal(err)
	}
	want := Event{
		ID: conn.ID{Netns: 4026532281, Family: 2, Cookie: 71,
			Local: netip.MustParseAddrPort("10.91.1.2:40122"), Remote: netip.MustParseAddrPort("[fd91::2]:7100")},
		Time: 1500 * time.Millisecond, Cause: CauseInFlight, Errno: unix.ETIMEDOUT, Policy: 3,
		Direction: conn.Outbound, BytesReceived: 5, BytesAcked: 6, Retransmits: 4, ProbesOut: 2,
	}
	got, err := decodeEvent(b)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, addrs); diff != "" {
		t.Errorf("event (-want +got):\n%s", diff)
	}
	if _, err := decodeEvent(b[:len(b)-1]); err == nil {
		t.Error("a short event is taken")
	}
	b[binary.Size(raw)-10] = 9 // type
	if _, err := decodeEvent(b); err == nil {
		t.Error("an event of unknown type is taken")
	}
}

// FuzzDecodeEvent: an error, or an event whose every field is in range.
func FuzzDecodeEvent(f *testing.F) {
	f.Add(make([]byte, binary.Size(sockopsShEvent{})))
	f.Add([]byte{1})
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := decodeEvent(b)
		if err != nil {
			if e != (Event{}) {
				t.Errorf("error %v and event %+v", err, e)
			}
			return
		}
		if int(e.Cause) >= causes || e.Local.Addr().Is4In6() || e.Remote.Addr().Is4In6() {
			t.Errorf("event %+v", e)
		}
	})
}

// FuzzDecodeLook: an error, or a look with unmapped addresses and no negative
// age.
func FuzzDecodeLook(f *testing.F) {
	f.Add(make([]byte, lookSize))
	f.Add([]byte{1})
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := decodeLook(b)
		if (err != nil) != (len(b) < lookSize) {
			t.Errorf("%d bytes: error %v", len(b), err)
		}
		if s.DataAge < 0 || s.PacketAge < 0 || s.Local.Addr().Is4In6() || s.Remote.Addr().Is4In6() ||
			!s.HasRecord && s.Record != (conn.Record{}) {
			t.Errorf("look %+v", s)
		}
	})
}

func TestRequire(t *testing.T) {
	for release, want := range map[string]string{
		"5.10.0-30-cloud-amd64": "",
		"6.18.44":               "",
		"5.9.16":                "kernel 5.9.16 is too old (run Linux 5.10 or later)",
		"4.19.0-27-amd64":       "kernel 4.19.0-27-amd64 is too old (run Linux 5.10 or later)",
	} {
		r, err := kernel.ParseRelease(release)
		if err != nil {
			t.Fatal(err)
		}
		if got := message(requireRelease(r, release)); got != want {
			t.Errorf("release %s: %q, want %q", release, got, want)
		}
	}
	for status, want := range map[string]string{
		"Name:\tx\nCapEff:\t000001ffffffffff\nCapBnd:\t0\n": "",
		"Name:\tx\nCapEff:\t000001fffeffffff\n":             "", // without CAP_SYS_RESOURCE
		"Name:\tx\nCapEff:\t000001ffffffdfff\n":             "CAP_NET_RAW missing, needed to send probes (run as root, or grant them)",
		"Name:\tx\nCapEff:\t0000000000000000\n": "CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN, CAP_NET_RAW, CAP_SYS_ADMIN missing, needed to " +
			"load programs, read sockets from programs, attach to cgroups and close sockets, send probes, enter network namespaces (run as root, or grant them)",
		"Name:\tx\n": "read the capabilities of this process: no CapEff in /proc/thread-self/status",
	} {
		if got := message(requireCapabilities(status)); got != want {
			t.Errorf("status %q: %q, want %q", status, got, want)
		}
	}
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
