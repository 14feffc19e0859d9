// SPDX-License-Identifier: Apache-2.0

package sockdiag

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/sockhealth/sockhealth/internal/conn"
	"golang.org/x/sys/unix"
)

// littleEndian skips a test whose bytes are those of a little-endian machine.
func littleEndian(t *testing.T) {
	t.Helper()
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("bytes of a little-endian machine")
	}
}

// unhex reads hexadecimal with white space in it.
func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func id(local, remote string, family uint8) conn.ID {
	return conn.ID{Family: family, Local: netip.MustParseAddrPort(local), Remote: netip.MustParseAddrPort(remote)}
}

func TestRequestBytes(t *testing.T) {
	littleEndian(t)
	for name, c := range map[string]struct {
		req  request
		want string
	}{
		"v4 with cookie and device": {
			exact(func() conn.ID {
				i := id("10.91.1.2:40122", "10.91.2.2:7100", unix.AF_INET)
				i.Cookie, i.Ifindex = 0x1122334455667788, 3
				return i
			}()),
			`02 06 00 00  00000000
			 9cba 1bbc
			 0a5b0102 000000000000000000000000
			 0a5b0202 000000000000000000000000
			 03000000  88776655 44332211`,
		},
		"v6, any cookie": {
			exact(id("[fd91:0:0:1::2]:40122", "[fd91:0:0:2::2]:7100", unix.AF_INET6)),
			`0a 06 00 00  00000000
			 9cba 1bbc
			 fd910000000000010000000000000002
			 fd910000000000020000000000000002
			 00000000  ffffffff ffffffff`,
		},
		"mapped": {
			exact(id("10.91.1.2:40122", "10.91.2.2:7100", unix.AF_INET6)),
			`0a 06 00 00  00000000
			 9cba 1bbc
			 00000000000000000000ffff0a5b0102
			 00000000000000000000ffff0a5b0202
			 00000000  ffffffff ffffffff`,
		},
		"a list": {
			request{family: unix.AF_INET6, ext: 0x32, states: States(conn.Established, conn.CloseWait)}.ports(0, 7100),
			`0a 06 32 00  02010000
			 0000 1bbc
			 00000000000000000000000000000000
			 00000000000000000000000000000000
			 00000000  00000000 00000000`,
		},
	} {
		got := c.req.encode()
		if len(got) != sizeofRequest {
			t.Errorf("%s: %d bytes, want %d", name, len(got), sizeofRequest)
		}
		if diff := cmp.Diff(unhex(t, c.want), got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestStates(t *testing.T) {
	if got := States(); got != 0 {
		t.Errorf("no state = %#x", got)
	}
	if got := States(conn.Established, conn.Closing); got != 1<<1|1<<11 {
		t.Errorf("two states = %#x", got)
	}
}

func TestCheckNamesOneConnection(t *testing.T) {
	for name, i := range map[string]conn.ID{
		"v4":     id("10.91.1.2:1", "10.91.2.2:2", unix.AF_INET),
		"v6":     id("[fd91::1]:1", "[fd91::2]:2", unix.AF_INET6),
		"mapped": id("10.91.1.2:1", "10.91.2.2:2", unix.AF_INET6),
	} {
		if err := check(i); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, i := range map[string]conn.ID{
		"nothing":         {},
		"no family":       id("10.91.1.2:1", "10.91.2.2:2", 0),
		"v6 as v4":        id("[fd91::1]:1", "[fd91::2]:2", unix.AF_INET),
		"two families":    id("10.91.1.2:1", "[fd91::2]:2", unix.AF_INET6),
		"mapped spelling": id("[::ffff:10.91.1.2]:1", "[::ffff:10.91.2.2]:2", unix.AF_INET6),
		"zone":            id("[fe80::1%eth0]:1", "[fe80::2%eth0]:2", unix.AF_INET6),
		"listener":        id("0.0.0.0:1", "0.0.0.0:0", unix.AF_INET),
		"no local port":   id("10.91.1.2:0", "10.91.2.2:2", unix.AF_INET),
		"no remote port":  id("10.91.1.2:1", "10.91.2.2:0", unix.AF_INET),
		"no remote":       id("10.91.1.2:1", "0.0.0.0:2", unix.AF_INET),
		"no remote v6":    id("[fd91::1]:1", "[::]:2", unix.AF_INET6),
	} {
		if err := check(i); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
}
