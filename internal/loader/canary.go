// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/policy"
)

// CanaryPort is the port, on both ends, whose connections prove that the programs
// fire: with CanaryAddr it is in every policy, whatever the file says.
const CanaryPort = 9758

// canaryID is the id of no policy: names get theirs from 1 on.
const canaryID = 0

// CanaryAddr is the peer of such connections. It is a loopback address that
// nobody uses otherwise: the kernel delivers it within the namespace alone, and
// any namespace has it whose loopback device is up.
func CanaryAddr() netip.Addr { return netip.AddrFrom4([4]byte{127, 83, 72, 67}) }

// CanaryOptions are what the programs set on such a connection: values that no
// other policy has by chance.
func CanaryOptions() conn.Options {
	return conn.Options{
		KeepAlive: true, Idle: 41 * time.Second, Interval: 7 * time.Second, Count: 5, UserTimeout: 83 * time.Second,
	}
}

// addCanary puts the canary's rule into a trie, before the rules that the policy
// has for its address. Of a full list the least specific rule is left out there.
func addCanary(trie *ebpf.Map, next *InForce, ids []uint32) error {
	pol := next.Policy
	var value sockopsShRules
	prefix := netip.PrefixFrom(CanaryAddr(), CanaryAddr().BitLen())
	peer := &policy.Peer{Options: CanaryOptions(), LeaveExisting: true} // what opens unseen is not adopted
	rule := policy.Rule{PortLo: CanaryPort, PortHi: CanaryPort, Directions: policy.Both}
	next.setRule(&value.Rule[0], rule, peer, canaryID)
	value.Count = 1
	for _, r := range around(pol, prefix) {
		if int(value.Count) == len(value.Rule) {
			break
		}
		next.setRule(&value.Rule[value.Count], r, &pol.Peers[r.Peer], ids[r.Peer])
		value.Count++
	}
	key := trieKey(prefix)
	if err := trie.Put(&key, &value); err != nil {
		return fmt.Errorf("add the canary to the policy trie: %w", err)
	}
	return nil
}

// around returns the rules that a policy has for an address.
func around(pol *policy.Policy, addr netip.Prefix) (rules []policy.Rule) {
	bits := -1
	for _, one := range pol.Compile() {
		if one.Prefix.Contains(addr.Addr()) && one.Prefix.Bits() > bits {
			rules, bits = one.Rules, one.Prefix.Bits()
		}
	}
	return rules
}

// countCanary gives the canary counters, without which each of its connections
// would count as a fault. named are the names to keep where there is no room.
func (p *Programs) countCanary(named map[string]bool) error {
	err := p.seeToCounters(canaryID)
	if errors.Is(err, unix.E2BIG) {
		if err = p.forgetExcept(named); err == nil {
			err = p.seeToCounters(canaryID)
		}
	}
	if err != nil {
		return fmt.Errorf("make counters of the canary: %w", err)
	}
	return nil
}
