// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// compiled writes prefixes as "10.0.0.0/8: a 1-2 both, b 0-65535 inbound".
func compiled(p *Policy) []string {
	var lines []string
	for _, one := range p.Compile() {
		var rules []string
		for _, r := range one.Rules {
			rules = append(rules, fmt.Sprintf("%s %d-%d %s", p.Peers[r.Peer].Name, r.PortLo, r.PortHi, r.Directions))
		}
		lines = append(lines, one.Prefix.String()+": "+strings.Join(rules, ", "))
	}
	return lines
}

func TestCompile(t *testing.T) {
	for _, tt := range []struct {
		name, peers string
		want        []string
	}{
		{
			name: "ancestors, most specific first",
			peers: `
  - {name: a, cidrs: [10.1.2.0/24], ports: [80, 443]}
  - {name: b, cidrs: [10.0.0.0/8, 10.1.2.3/32], direction: inbound}
  - {name: c, cidrs: [10.1.0.0/16, "fd00::/64"]}`,
			want: []string{
				"10.0.0.0/8: b 0-65535 inbound",
				"10.1.0.0/16: c 0-65535 both, b 0-65535 inbound",
				"10.1.2.0/24: a 80-80 both, a 443-443 both, c 0-65535 both, b 0-65535 inbound",
				"10.1.2.3/32: b 0-65535 inbound, a 80-80 both, a 443-443 both, c 0-65535 both, b 0-65535 inbound",
				"fd00::/64: c 0-65535 both",
			},
		},
		{
			name: "an except takes out its own entry only",
			peers: `
  - {name: a, cidrs: [10.0.0.0/8], except: [10.1.0.0/16]}
  - {name: b, cidrs: [10.1.2.0/24]}
  - {name: c, cidrs: [0.0.0.0/0], ports: [80]}`,
			want: []string{
				"0.0.0.0/0: c 80-80 both",
				"10.0.0.0/8: a 0-65535 both, c 80-80 both",
				"10.1.0.0/16: c 80-80 both",
				"10.1.2.0/24: b 0-65535 both, c 80-80 both",
			},
		},
		{
			name:  "an except alone has no rules",
			peers: `  - {name: a, cidrs: [10.0.0.0/8], except: [10.1.0.0/16, 10.1.1.0/24]}`,
			want:  []string{"10.0.0.0/8: a 0-65535 both", "10.1.0.0/16: ", "10.1.1.0/24: "},
		},
		{
			name: "an except of one at the cidr of another",
			peers: `
  - {name: a, cidrs: [10.0.0.0/8], except: [10.1.0.0/16]}
  - {name: b, cidrs: [10.1.0.0/16]}`,
			want: []string{"10.0.0.0/8: a 0-65535 both", "10.1.0.0/16: b 0-65535 both"},
		},
		{
			name: "an except around the cidr of another",
			peers: `
  - {name: a, cidrs: [10.0.0.0/8, 10.0.0.0/12], except: [10.1.0.0/16]}
  - {name: b, cidrs: [10.1.1.0/24]}`,
			want: []string{
				"10.0.0.0/8: a 0-65535 both", "10.0.0.0/12: a 0-65535 both, a 0-65535 both",
				"10.1.0.0/16: ", "10.1.1.0/24: b 0-65535 both",
			},
		},
		{
			name:  "::/0 speaks of IPv6 alone",
			peers: `  - {name: a, cidrs: ["::/0", 10.0.0.0/8]}`,
			want:  []string{"0.0.0.0/0: ", "10.0.0.0/8: a 0-65535 both", "::/0: a 0-65535 both"},
		},
		{
			name:  "the longest IPv6 prefix around IPv4",
			peers: `  - {name: a, cidrs: ["::fffe:0:0/95"]}`,
			want:  []string{"0.0.0.0/0: ", "::fffe:0:0/95: a 0-65535 both"},
		},
		{
			name:  "IPv6 beside IPv4",
			peers: `  - {name: a, cidrs: ["::fffe:0:0/96"]}`,
			want:  []string{"::fffe:0:0/96: a 0-65535 both"},
		},
		{
			name: "one CIDR, ports and directions apart",
			peers: `
  - {name: a, cidrs: [10.0.0.0/8], ports: [80], direction: inbound}
  - {name: b, cidrs: [10.0.0.0/8], ports: [80], direction: outbound}
  - {name: c, cidrs: [10.0.0.0/8], ports: [81]}`,
			want: []string{"10.0.0.0/8: a 80-80 inbound, b 80-80 outbound, c 81-81 both"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := compiled(mustParse(t, "version: 1\npeers:\n"+tt.peers+"\n"))
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// In one trie over IPv4-mapped addresses the nearest prefix around an IPv4
// prefix that has one is never IPv6.
func TestCompileOneTrie(t *testing.T) {
	p := mustParse(t, head+`  - {name: a, cidrs: ["::/0", "::/80", 10.0.0.0/8]}`)
	mapped := func(p netip.Prefix) netip.Prefix {
		if p.Addr().Is4() {
			return netip.PrefixFrom(netip.AddrFrom16(p.Addr().As16()), p.Bits()+96)
		}
		return p
	}
	best, rules := -1, -1
	for _, one := range p.Compile() {
		m := mapped(one.Prefix)
		if m.Contains(netip.MustParseAddr("::ffff:192.0.2.1")) && m.Bits() > best {
			best, rules = m.Bits(), len(one.Rules)
		}
	}
	if best != 96 || rules != 0 {
		t.Errorf("192.0.2.1 falls to a prefix of %d bits with %d rules", best, rules)
	}
}

// peersOf writes n peers, each by format with its number.
func peersOf(n int, format string) string {
	var b strings.Builder
	b.WriteString(head)
	for i := range n {
		b.WriteString(strings.ReplaceAll(format, "$", fmt.Sprint(i)) + "\n")
	}
	return b.String()
}

func TestLimits(t *testing.T) {
	cidrs := func(n int) string {
		var b strings.Builder
		b.WriteString(head + "  - name: a\n    cidrs:\n")
		for i := range n {
			fmt.Fprintf(&b, "    - 10.%d.%d.0/24\n", i/256, i%256)
		}
		return b.String()
	}
	ports := func(n int) string {
		var list []string
		for i := range n {
			list = append(list, fmt.Sprint(1000+2*i))
		}
		return "[" + strings.Join(list, ", ") + "]"
	}
	for _, tt := range []struct{ name, text, want string }{
		{"peers", peersOf(MaxPeers, `  - {name: p$, cidrs: ["fd00:$::/64"]}`), ""},
		{"peers above", peersOf(MaxPeers+2, `  - {name: p$, cidrs: ["fd00:$::/64"]}`),
			"p:1027:5: peer 1025 of 1026 is above the limit of 1024: give one peer several cidrs"},
		{"prefixes", cidrs(MaxPrefixes), ""},
		{"prefixes above", cidrs(MaxPrefixes + 1),
			"p:3:3: peers have 16385 prefixes, more than 16384: use larger CIDRs"},
		{"rules of one", head + "  - {name: a, cidrs: [10.0.0.0/8], ports: " + ports(64) + "}", ""},
		{"rules of one above", head + "  - {name: a, cidrs: [10.0.0.0/8], ports: " + ports(65) + "}",
			"p:3:23: cidr 10.0.0.0/8 has more than 64 rules, those of the prefixes around it included: give its peers fewer port ranges, or join peers"},
		{"rules of ancestors", head + "  - {name: a, cidrs: [10.0.0.0/8, 10.1.0.0/16], ports: " + ports(32) + "}", ""},
		{"rules of ancestors above", head + "  - {name: a, cidrs: [10.0.0.0/8, 10.1.0.0/16, 10.1.1.0/24, 10.2.0.0/16], ports: " + ports(33) + "}",
			"p:3:35: cidr 10.1.0.0/16 has more than 64 rules, those of the prefixes around it included: give its peers fewer port ranges, or join peers\n" +
				"p:3:61: cidr 10.2.0.0/16 has more than 64 rules, those of the prefixes around it included: give its peers fewer port ranges, or join peers"},
		{"rules of ancestors without the excepted", head + "  - {name: a, cidrs: [10.0.0.0/8], except: [10.1.0.0/16], ports: " + ports(33) + "}\n" +
			"  - {name: b, cidrs: [10.1.0.0/16], ports: " + ports(64) + "}", ""},
		{"size", strings.Repeat("#", MaxSize+1), "p: file has 1048577 bytes, more than 1048576: split the peers or use larger CIDRs"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse("p", []byte(tt.text))
			got := ""
			if err != nil {
				got = err.Error()
			}
			if got != tt.want {
				t.Errorf("got  %.600s\nwant %s", got, tt.want)
			}
		})
	}
}
