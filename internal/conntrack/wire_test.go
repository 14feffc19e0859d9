// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

var (
	client  = netip.MustParseAddrPort("10.91.1.2:40000")
	server  = netip.MustParseAddrPort("10.91.2.2:7100")
	proxy   = netip.MustParseAddrPort("127.0.0.1:15001")
	client6 = netip.MustParseAddrPort("[fd91::2]:40000")
	server6 = netip.MustParseAddrPort("[fd91::3]:7100")
)

func TestRequest(t *testing.T) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the bytes are those of a little-endian machine")
	}
	for _, tt := range []struct {
		src, dst netip.AddrPort
		want     string
	}{
		{client, server, "48000000" + "0101" + "0100" + "00000000" + "00000000" + // 72 bytes, CT_GET, NLM_F_REQUEST
			"02" + "000000" + "34000180" + // IPv4, CTA_TUPLE_ORIG
			"14000180" + "08000100" + "0a5b0102" + "08000200" + "0a5b0202" +
			"1c000280" + "05000100" + "06000000" + "06000200" + "9c400000" + "06000300" + "1bbc0000"},
		{client6, server6, "60000000" + "0101" + "0100" + "00000000" + "00000000" +
			"0a" + "000000" + "4c000180" +
			"2c000180" + "14000300" + "fd910000000000000000000000000002" + "14000400" + "fd910000000000000000000000000003" +
			"1c000280" + "05000100" + "06000000" + "06000200" + "9c400000" + "06000300" + "1bbc0000"},
	} {
		got, err := request(tt.src, tt.dst)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, hex.EncodeToString(got)); diff != "" {
			t.Errorf("%s: -want +got\n%s", tt.dst, diff)
		}
	}
}

// message makes a netlink message of one kind.
func message(kind uint16, data ...byte) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(unix.NLMSG_HDRLEN+len(data)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	return append(append(b, make([]byte, 10)...), data...)
}

// entryMessage is what the kernel answers, as request spells a tuple.
func entryMessage(t testing.TB, e entry) []byte {
	t.Helper()
	var data []byte
	for kind, one := range map[uint16]tuple{attrOrig: e.orig, attrReply: e.reply} {
		b, err := request(one.src, one.dst)
		if err != nil {
			t.Fatal(err)
		}
		b = b[unix.NLMSG_HDRLEN+nfgenmsg:]
		binary.NativeEndian.PutUint16(b[2:], kind|unix.NLA_F_NESTED)
		data = append(data, b...)
	}
	return message(typeNew, append([]byte{unix.AF_INET, 0, 0, 0}, data...)...)
}

func TestReply(t *testing.T) {
	for _, want := range []entry{
		{tuple{client, server}, tuple{proxy, client}},
		{tuple{client6, server6}, tuple{server6, client6}},
	} {
		got, err := reply(entryMessage(t, want))
		if err != nil || got != want {
			t.Errorf("%+v, %v, want %+v", got, err, want)
		}
	}
	code := func(n int32) []byte { return binary.NativeEndian.AppendUint32(nil, uint32(n)) }
	for errno, none := range map[unix.Errno]bool{unix.ENOENT: true, unix.EINVAL: true, unix.EPERM: false} {
		_, err := reply(message(unix.NLMSG_ERROR, code(-int32(errno))...))
		if !errors.Is(err, errno) || errors.Is(edge(err), ErrNone) != none {
			t.Errorf("%v arrives as %v, means none: %t, want %t", errno, err, errors.Is(edge(err), ErrNone), none)
		}
	}
	whole := entryMessage(t, entry{tuple{client, server}, tuple{proxy, client}})
	for name, b := range map[string][]byte{
		"nothing":           nil,
		"an acknowledgment": message(unix.NLMSG_ERROR, code(0)...),
		"another message":   message(unix.RTM_NEWROUTE, make([]byte, 16)...),
		"no attributes":     message(typeNew, make([]byte, 4)...),
		"half an entry":     whole[:len(whole)/2],
	} {
		if e, err := reply(b); err == nil {
			t.Errorf("%s passes for %+v", name, e)
		}
	}
}

func FuzzReply(f *testing.F) {
	f.Add(entryMessage(f, entry{tuple{client, server}, tuple{proxy, client}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := reply(b)
		if err == nil && (!e.orig.src.IsValid() || !e.reply.dst.IsValid()) {
			t.Errorf("%x passes for %+v", b, e)
		}
	})
}

func TestOther(t *testing.T) {
	for _, tt := range []struct {
		name          string
		e             entry
		local, remote netip.AddrPort
		want          netip.AddrPort
	}{
		{"as it seems", entry{tuple{client, server}, tuple{server, client}}, client, server, server},
		{"redirected", entry{tuple{client, server}, tuple{proxy, client}}, client, server, proxy},
		{"accepted", entry{tuple{client, server}, tuple{server, client}}, server, client, client},
		{"accepted from behind a translation", entry{tuple{proxy, server}, tuple{server, client}}, server, client, proxy},
	} {
		if got := tt.e.other(tt.local, tt.remote); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}
