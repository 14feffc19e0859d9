// SPDX-License-Identifier: Apache-2.0

package sockdiag

import (
	"errors"
	"net/netip"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/sockhealth/sockhealth/internal/conn"
	"golang.org/x/sys/unix"
)

// Fixed parts of answers: family, state, timer, retries; ports; addresses;
// device and cookie; expires, rqueue, wqueue, uid, inode.
const (
	answer4 = `
		02 01 01 03
		9cba 1bbc
		0a5b0102 000000000000000000000000
		0a5b0202 000000000000000000000000
		03000000 88776655 44332211
		e8030000 07000000 64000000 e8030000 39300000`
	answerMapped = `
		0a 08 02 00
		1bbc 9cba
		00000000000000000000ffff0a5b0202
		00000000000000000000ffff0a5b0102
		00000000 47000000 00000000
		ffffffff 00000000 00000000 00000000 01000000`
)

// Attributes: length, type, value, padding.
const (
	attributes = `
		0500 0800 03 000000
		0500 0500 10 000000
		0500 0600 20 000000
		0800 0f00 2a000000
		0c00 1500 0807060504030201
		0800 6300 efbeadde
		0800 1280 00000000
		1000 1380 0a00 0100 6d7074637000 0000`
	// The first 20 bytes of tcp_info, as a kernel that ends it there.
	shortInfo = `1800 0200 01 00 02 00 00 07 77 00 40420f00 409c0000 a8050000`
)

func TestDecode(t *testing.T) {
	littleEndian(t)
	four := netip.MustParseAddrPort("10.91.1.2:40122")
	seven := netip.MustParseAddrPort("10.91.2.2:7100")
	bare := Socket{
		ID:    conn.ID{Family: unix.AF_INET, Local: four, Remote: seven, Ifindex: 3, Cookie: 0x1122334455667788},
		State: conn.Established, Timer: TimerRetransmit, Retries: 3, Expires: time.Second,
		RQueue: 7, WQueue: 100, UID: 1000, Inode: 12345,
	}
	full := bare
	full.Shutdown, full.TOS, full.TClass, full.Mark = 3, 0x10, 0x20, 42
	full.CgroupID, full.MD5, full.ULP = 0x0102030405060708, true, "mptcp"
	full.TCPInfo = &unix.TCPInfo{State: 1, Retransmits: 2, Options: 7, Rto: 1000000, Ato: 40000, Snd_mss: 1448}
	for name, c := range map[string]struct {
		in   string
		want Socket
	}{
		"fixed part": {answer4, bare},
		"mapped, timer overdue": {answerMapped, Socket{
			ID:    conn.ID{Family: unix.AF_INET6, Local: seven, Remote: four, Cookie: 71},
			State: conn.CloseWait, Timer: TimerKeepalive, Inode: 1,
		}},
		"all attributes": {answer4 + attributes + shortInfo, full},
	} {
		in := unhex(t, c.in)
		got, err := decode(in)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(c.want, got, cmpopts.EquateComparable(netip.AddrPort{}), cmpopts.IgnoreUnexported(unix.TCPInfo{})); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	if n := len(unhex(t, answer4)); n != sizeofMessage {
		t.Errorf("the fixed part has %d bytes, want %d", n, sizeofMessage)
	}
	if n := unsafe.Sizeof(unix.TCPInfo{}); n != unix.SizeofTCPInfo {
		t.Errorf("tcp_info has %d bytes, want %d", n, unix.SizeofTCPInfo)
	}
}

// A newer kernel's tcp_info is longer, and its end is left out.
func TestDecodeLongerTCPInfo(t *testing.T) {
	b := make([]byte, unix.SizeofTCPInfo+64)
	b[0] = 1
	info, err := tcpInfo(b)
	if err != nil || info.State != 1 {
		t.Errorf("info = %+v, %v", info, err)
	}
}

func TestDecodeRefuses(t *testing.T) {
	littleEndian(t)
	for name, c := range map[string]struct {
		in   string
		want error // nil: any
	}{
		"nothing":             {"", errShort},
		"one byte short":      {answer4[:len(answer4)-2], errShort},
		"unknown family":      {"11" + answer4[5:], errFamily},
		"mark of two bytes":   {answer4 + "0600 0f00 2a00 0000", nil},
		"cgroup of four":      {answer4 + "0800 1500 2a000000", nil},
		"empty tcp_info":      {answer4 + "0400 0200", errLength},
		"attribute cut short": {answer4 + "0800 0f00 2a00", nil},
		"half a header":       {answer4 + "0800", nil},
		"nested nonsense":     {answer4 + "0a00 1380 ffff 0100 0000 0000", nil},
	} {
		s, err := decode(unhex(t, c.in))
		if err == nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if s != (Socket{}) {
			t.Errorf("%s: a value beside the error: %+v", name, s)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, seed := range []string{"", answer4, answerMapped, answer4 + attributes + shortInfo} {
		f.Add(unhex(f, seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := decode(b)
		if err != nil {
			if s != (Socket{}) {
				t.Fatalf("a value beside the error: %+v", s)
			}
			return
		}
		if s.Family != unix.AF_INET && s.Family != unix.AF_INET6 {
			t.Fatalf("family %d", s.Family)
		}
		if !s.Local.IsValid() || !s.Remote.IsValid() || s.Local.Addr().Is4In6() || s.Remote.Addr().Is4In6() {
			t.Fatalf("addresses %s, %s", s.Local, s.Remote)
		}
		if s.Expires < 0 {
			t.Fatalf("expires %s", s.Expires)
		}
		// What was decoded can be asked for: the same tuple, device and cookie.
		if check(s.ID) == nil && s.Local.Addr().Is4() == s.Remote.Addr().Is4() && s.Cookie != 0 {
			if got, want := string(exact(s.ID).encode()[8:]), string(b[4:4+sizeofSockID]); s.Family == unix.AF_INET6 && got != want {
				t.Fatalf("asked as %x, was %x", got, want)
			}
		}
	})
}
