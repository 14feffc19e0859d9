// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Fault is something the router does to packets until it is healed.
type Fault struct{ rule rule }

// Heal removes this fault and no other. A second Heal does nothing.
func (f *Fault) Heal() error { return f.rule.remove() }

// Packets returns how many packets the fault has hit. A segment that the
// sender's offload left whole counts as one.
func (f *Fault) Packets() (uint64, error) { return f.rule.packets() }

// Counter counts packets that reach the router, before any fault.
type Counter struct{ rule rule }

// Packets returns the number of packets since the counter was made.
func (c *Counter) Packets() (uint64, error) { return c.rule.packets() }

// Remove ends the counter. A second Remove does nothing.
func (c *Counter) Remove() error { return c.rule.remove() }

// Drop loses the packets of m without a word to anybody.
func (l *Lab) Drop(m Match) (*Fault, error) {
	return l.fault(m, &expr.Verdict{Kind: expr.VerdictDrop})
}

// DropFirst loses the first n packets of m; those after them pass. The fault counts
// them all.
func (l *Lab) DropFirst(m Match, n uint32) (*Fault, error) {
	// What is within the burst, which is never filled up again.
	first := &expr.Limit{Type: expr.LimitTypePkts, Rate: 1, Unit: expr.LimitTimeWeek, Burst: n}
	r, err := l.rules.add(l.rules.faults, m, first, &expr.Verdict{Kind: expr.VerdictDrop})
	if err != nil {
		return nil, err
	}
	return &Fault{rule: r}, nil
}

// DropLocally loses what the client sends, in the client's own output hook: the sender
// is told (EPERM), and to its kernel the packet never left (kernel-facts T14).
func (l *Lab) DropLocally(m Match) (*Fault, error) {
	l.local.Lock()
	defer l.local.Unlock()
	if l.local.rules == nil {
		rules, err := newRuleset(l.Client, nftables.ChainHookOutput)
		if err != nil {
			return nil, fmt.Errorf("make client's rules: %w", err)
		}
		l.local.rules = rules
	}
	r, err := l.local.rules.add(l.local.rules.faults, m, &expr.Verdict{Kind: expr.VerdictDrop})
	if err != nil {
		return nil, err
	}
	return &Fault{rule: r}, nil
}

// DropPort loses both directions of every connection to a server's port.
func (l *Lab) DropPort(port uint16) (*Fault, error) { return l.Drop(Port(port)) }

// DropC2S loses what clients send to a server's port.
func (l *Lab) DropC2S(port uint16) (*Fault, error) { return l.Drop(Match{DstPort: port}) }

// DropS2C loses what servers send from a port.
func (l *Lab) DropS2C(port uint16) (*Fault, error) { return l.Drop(Match{SrcPort: port}) }

// StateLoss loses both directions of one connection, as a NAT or firewall does
// that has forgotten it; every other connection goes on.
func (l *Lab) StateLoss(local, remote netip.AddrPort) (*Fault, error) {
	return l.Drop(Between(local, remote))
}

// RejectReset answers each TCP packet of m with a reset in the name of the
// packet's destination.
func (l *Lab) RejectReset(m Match) (*Fault, error) {
	m.Clear |= RST // a reset is never answered; it also makes this a rule on TCP
	return l.fault(m, &expr.Reject{Type: unix.NFT_REJECT_TCP_RST})
}

// Unreachable answers each packet of m with an ICMP message that says so.
func (l *Lab) Unreachable(m Match) (*Fault, error) {
	const hostUnreachable = 2 // NFT_REJECT_ICMPX_HOST_UNREACH
	return l.fault(m, &expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: hostUnreachable})
}

func (l *Lab) fault(m Match, verdict expr.Any) (*Fault, error) {
	r, err := l.rules.add(l.rules.faults, m, verdict)
	if err != nil {
		return nil, err
	}
	return &Fault{rule: r}, nil
}

// Count counts the packets of m and lets them pass.
func (l *Lab) Count(m Match) (*Counter, error) {
	r, err := l.rules.add(l.rules.counters, m)
	if err != nil {
		return nil, err
	}
	return &Counter{rule: r}, nil
}
