// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
)

// scan is the definition: of all peers that do not except the address and
// whose ports and direction match, the one with the longest CIDR around it.
func scan(p *Policy, remote netip.AddrPort, localPort uint16, direction conn.Direction) *Peer {
	addr := remote.Addr().Unmap()
	port := remote.Port()
	if direction == conn.Inbound {
		port = localPort
	}
	var best *Peer
	longest := -1
	for i, peer := range p.Peers {
		if direction == conn.Outbound && peer.Directions == Directions(conn.Inbound) ||
			direction == conn.Inbound && peer.Directions == Directions(conn.Outbound) {
			continue
		}
		matches := len(peer.Ports) == 0
		for _, r := range peer.Ports {
			matches = matches || r.Lo <= port && port <= r.Hi
		}
		for _, x := range peer.Except {
			matches = matches && !x.Prefix.Contains(addr)
		}
		for _, c := range peer.CIDRs {
			if matches && c.Prefix.Contains(addr) && c.Prefix.Bits() > longest {
				best, longest = &p.Peers[i], c.Prefix.Bits()
			}
		}
	}
	return best
}

// trie is the kernel's look-up: one trie over IPv4-mapped addresses, the
// longest prefix, then the first rule that matches.
func trie(p *Policy, remote netip.AddrPort, localPort uint16, direction conn.Direction) *Peer {
	addr := netip.AddrFrom16(remote.Addr().As16())
	port := remote.Port()
	if direction == conn.Inbound {
		port = localPort
	}
	var rules []Rule
	longest := -1
	for _, one := range p.Compile() {
		bits := one.Prefix.Bits()
		if one.Prefix.Addr().Is4() {
			bits += 96
		}
		mapped := netip.PrefixFrom(netip.AddrFrom16(one.Prefix.Addr().As16()), bits)
		if sixteen(mapped, addr) && bits > longest {
			rules, longest = one.Rules, bits
		}
	}
	for _, r := range rules {
		if r.Directions.Has(direction) && r.PortLo <= port && port <= r.PortHi {
			return &p.Peers[r.Peer]
		}
	}
	return nil
}

// sixteen compares 16 bytes bit by bit, as the kernel does.
func sixteen(p netip.Prefix, addr netip.Addr) bool {
	a, b := p.Addr().As16(), addr.As16()
	for i := range p.Bits() {
		if (a[i/8]^b[i/8])&(0x80>>(i%8)) != 0 {
			return false
		}
	}
	return true
}

// agree fails where Match, the definition and the kernel's way differ.
func agree(t *testing.T, p *Policy, remote netip.AddrPort, localPort uint16, direction conn.Direction) (matched bool) {
	t.Helper()
	got, ok := p.Match(remote, localPort, direction)
	if ok != (got != nil) {
		t.Fatalf("Match returned %v and %v", got, ok)
	}
	if want := scan(p, remote, localPort, direction); got != want {
		t.Fatalf("%s local port %d %s: matched %s, definition says %s", remote, localPort, direction, nameOf(got), nameOf(want))
	}
	if want := trie(p, remote, localPort, direction); got != want {
		t.Fatalf("%s local port %d %s: matched %s, trie says %s", remote, localPort, direction, nameOf(got), nameOf(want))
	}
	return ok
}

func nameOf(p *Peer) string {
	if p == nil {
		return "nobody"
	}
	return p.Name
}

// world draws from few addresses, so that prefixes nest and collide.
type world struct{ *rand.Rand }

func (w world) addr() netip.Addr {
	switch w.IntN(4) {
	case 0, 1:
		return netip.AddrFrom4([4]byte{10, byte(w.IntN(2)) << 7, byte(w.IntN(3)), byte(w.IntN(4))})
	case 2:
		return netip.AddrFrom16([16]byte{0: 0xfd, 7: byte(w.IntN(2)), 15: byte(w.IntN(4))})
	}
	return netip.AddrFrom16([16]byte{10: byte(w.IntN(2) * 0xff), 11: 0xfe, 15: byte(w.IntN(3))})
}

func (w world) within(p netip.Prefix) netip.Prefix {
	return netip.PrefixFrom(p.Addr(), p.Bits()+w.IntN(p.Addr().BitLen()-p.Bits()+1))
}

func (w world) prefix() netip.Prefix {
	a := w.addr()
	return netip.PrefixFrom(a, w.IntN(a.BitLen()+1)).Masked()
}

func (w world) peer(i int) string {
	var cidrs, except []string
	for range 1 + w.IntN(3) {
		c := w.prefix()
		cidrs = append(cidrs, fmt.Sprintf("%q", c))
		if w.IntN(2) == 0 {
			except = append(except, fmt.Sprintf("%q", w.within(c).Masked()))
		}
	}
	ports := ""
	if w.IntN(2) == 0 {
		lo := 1 + w.IntN(6)
		ports = fmt.Sprintf(", ports: [%d-%d, %d]", lo, lo+w.IntN(3), 1+w.IntN(8))
	}
	direction := Directions(1 + w.IntN(3))
	return fmt.Sprintf("  - {name: p%d, direction: %s, cidrs: [%s], except: [%s]%s}\n",
		i, direction, strings.Join(cidrs, ", "), strings.Join(except, ", "), ports)
}

// policy adds random peers as long as the file stays right.
func (w world) policy() *Policy {
	text, p := head, (*Policy)(nil)
	for i := range 12 {
		more := text + w.peer(i)
		if q, err := Parse("random.yaml", []byte(more)); err == nil {
			text, p = more, q
		}
	}
	return p
}

func TestMatchRandom(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	w := world{rand.New(rand.NewPCG(seed, 0))}
	matched, missed := 0, 0
	for range 300 {
		p := w.policy()
		if p == nil {
			continue
		}
		for range 200 {
			a := w.addr()
			if a.Is4() && w.IntN(2) == 0 {
				a = netip.AddrFrom16(a.As16())
			}
			remote := netip.AddrPortFrom(a, uint16(w.IntN(10)))
			if agree(t, p, remote, uint16(w.IntN(10)), conn.Direction(1+w.IntN(2))) {
				matched++
			} else {
				missed++
			}
		}
	}
	if matched < 1000 || missed < 1000 {
		t.Errorf("the draw is one-sided: %d matched, %d did not", matched, missed)
	}
}

func TestMatch(t *testing.T) {
	p := mustParse(t, `version: 1
peers:
  - {name: wide, cidrs: [10.0.0.0/8], ports: [80], except: [10.9.0.0/16]}
  - {name: near, cidrs: [10.1.0.0/16], ports: [7100-7199], direction: outbound}
  - {name: in, cidrs: [10.1.0.0/16], ports: [7100-7199], direction: inbound}
  - {name: six, cidrs: ["::/0"]}
`)
	for _, tt := range []struct {
		remote    string
		local     uint16
		direction conn.Direction
		want      string
	}{
		{"10.1.2.3:7150", 40000, conn.Outbound, "near"},
		{"10.1.2.3:40000", 7150, conn.Inbound, "in"},
		{"10.1.2.3:7150", 40000, conn.Inbound, "nobody"},
		{"10.1.2.3:40000", 7150, conn.Outbound, "nobody"},
		{"10.1.2.3:80", 1, conn.Outbound, "wide"}, // an ancestor's rule
		{"10.1.2.3:1", 80, conn.Inbound, "wide"},
		{"10.2.0.1:80", 1, conn.Outbound, "wide"},
		{"10.9.0.1:80", 1, conn.Outbound, "nobody"},
		{"[::ffff:10.1.2.3]:7100", 1, conn.Outbound, "near"},
		{"[::ffff:11.1.2.3]:7100", 1, conn.Outbound, "nobody"},
		{"[fe80::1%eth0]:5", 1, conn.Outbound, "six"},
		{"11.0.0.1:80", 1, conn.Outbound, "nobody"},
		{"10.1.2.3:7150", 7150, conn.DirectionUnknown, "nobody"},
		{"10.1.2.3:7150", 7150, 3, "nobody"},
	} {
		got, _ := p.Match(netip.MustParseAddrPort(tt.remote), tt.local, tt.direction)
		if nameOf(got) != tt.want {
			t.Errorf("%s local port %d %s: matched %s, want %s", tt.remote, tt.local, tt.direction, nameOf(got), tt.want)
		}
	}
	if _, ok := new(Policy).Match(netip.MustParseAddrPort("10.1.2.3:7150"), 1, conn.Outbound); ok {
		t.Error("the zero policy matched")
	}
	if _, ok := p.Match(netip.AddrPort{}, 1, conn.Outbound); ok {
		t.Error("the zero address matched")
	}
}
