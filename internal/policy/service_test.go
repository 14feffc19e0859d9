// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net/netip"
	"strings"
	"testing"
)

func TestParseService(t *testing.T) {
	for _, s := range []string{"10.20.1.2:1", "10.20.1.2:65535", "[fd00:20::2]:7100", "[::ffff:10.20.1.2]:7100", "[fe80::1%eth0]:80"} {
		if got, err := ParseService(s); err != nil || got != netip.MustParseAddrPort(s) {
			t.Errorf("%s: %s, %v", s, got, err)
		}
	}
	const want = "want an IP address and a port such as 10.20.1.2:7100 or [fd00:20::2]:7100; names are not resolved"
	for s, want := range map[string]string{
		"10.20.1.2:0":         "port 0 is none: a port is 1 to 65535",
		"10.20.1.2:65536":     "port 65536 is none: a port is 1 to 65535",
		"[fd00:20::2]:70000":  "port 70000 is none: a port is 1 to 65535",
		"[fe80::1%eth0]:0":    "port 0 is none: a port is 1 to 65535",
		"":                    want,
		":80":                 want,
		"10.20.1.2":           want,
		"10.20.1.2:":          want,
		"10.20.1.2:-1":        want,
		"10.20.1.2:http":      want,
		"fd00:20::2:70000":    want,
		"fd00:20::2":          want,
		"db:70000":            want,
		"10.20.1.2:7100:7200": want,
		"10.20.1.256:70000":   want,
	} {
		got, err := ParseService(s)
		if err == nil || err.Error() != want || got.IsValid() {
			t.Errorf("%q: %s, %v; want %s", s, got, err, want)
		}
	}
	if _, err := ParseService("10.20.1.2:" + strings.Repeat("9", 5000)); err == nil || len(err.Error()) > 200 {
		t.Errorf("a long port: %v", err)
	}
}
