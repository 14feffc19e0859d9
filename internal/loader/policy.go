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

// InForce is the policy that the kernel has, with the ids it is known by there.
type InForce struct {
	Policy *policy.Policy
	Since  time.Duration  // CLOCK_MONOTONIC
	peers  map[uint32]int // id to index in Policy.Peers
	caps   bool           // the kernel has kernel.RTOCap
}

// Peer returns the entry that a record names by its id, nil where the policy
// in force has none with that name any more.
func (f *InForce) Peer(id uint32) *policy.Peer {
	if f == nil {
		return nil
	}
	i, ok := f.peers[id]
	if !ok {
		return nil
	}
	return &f.Policy.Peers[i]
}

// Wanted are the options that the programs were told for an entry of the policy.
func (f *InForce) Wanted(peer *policy.Peer) conn.Options { return peer.Wanted(f.caps) }

// Uncapped names the entries that ask for in_flight: rto_cap, which this kernel cannot
// give: user_timeout bounds them.
func (f *InForce) Uncapped() []string {
	if f.caps {
		return nil
	}
	return f.Policy.Uncapped()
}

// InForce returns the policy in force, nil before the first SetPolicy.
func (p *Programs) InForce() *InForce { return p.inForce.Load() }

// SetPolicy puts a policy in force, by one pointer: a connection that opens
// meanwhile gets either the whole of the old one or the whole of the new one.
// A peer keeps its id and counters as long as its name stays. After an error
// the old policy stays. Connections that are open keep what they have.
func (p *Programs) SetPolicy(pol *policy.Policy) error {
	p.swap.Lock()
	defer p.swap.Unlock()
	ids, fresh, err := p.assign(pol)
	if err != nil {
		return fmt.Errorf("set policy %s: %w", pol.Revision, err)
	}
	next := &InForce{Policy: pol, Since: conn.Now(), peers: make(map[uint32]int, len(ids)), caps: p.capsRTO() == nil}
	for i, id := range ids {
		next.peers[id] = i
	}
	trie, err := p.buildTrie(next, ids)
	if err == nil {
		defer trie.Close() // the kernel's slot holds its own reference
		if err = errors.Join(p.rememberPolicy(), p.keepPolicy(pol.Revision)); err == nil {
			err = p.swapIn(trie, next)
		}
	}
	if err != nil {
		return errors.Join(fmt.Errorf("set policy %s: %w", pol.Revision, err), p.forget(fresh))
	}
	return nil
}

// swapIn hands the kernel a policy. Our own side knows it first: the kernel
// returns some milliseconds after connections get new ids (it waits for RCU), and
// a name that we did not know would be no policy.
func (p *Programs) swapIn(trie *ebpf.Map, next *InForce) error {
	before := p.inForce.Swap(next)
	err := p.sockops.ShPolicy.Put(uint32(0), trie)
	if err != nil {
		p.inForce.Store(before)
	}
	return err
}

// assign returns the id of each peer, new names with new ids and counters, and
// the names that are new.
func (p *Programs) assign(pol *policy.Policy) (ids []uint32, fresh []string, err error) {
	named := make(map[string]bool, len(pol.Peers))
	for _, peer := range pol.Peers {
		named[peer.Name] = true
	}
	if err := p.countCanary(named); err != nil {
		return nil, nil, err
	}
	for _, peer := range pol.Peers {
		id, ok := p.ids[peer.Name]
		if !ok {
			id, err = p.newID(peer.Name)
			if errors.Is(err, unix.E2BIG) {
				// Make room: the counters of names long gone.
				if err = p.forgetExcept(named); err == nil {
					id, err = p.newID(peer.Name)
				}
			}
			if err != nil {
				return nil, nil, errors.Join(fmt.Errorf("make counters of peer %q: %w", peer.Name, err), p.forget(fresh))
			}
			fresh = append(fresh, peer.Name)
		}
		ids = append(ids, id)
	}
	return ids, fresh, nil
}

// newID gives a name an id that none ever had, with counters at 0. Wherever that
// is cut short, nobody else gets the id, and counters without a name are freed by
// the next start.
func (p *Programs) newID(name string) (uint32, error) {
	id := p.nextID
	if err := p.keepID(id + 1); err != nil {
		return 0, err
	}
	if err := p.newCounters(id); err != nil {
		return 0, err
	}
	if err := p.keepName(id, name); err != nil {
		return 0, errors.Join(err, p.dropCounters([]uint32{id}))
	}
	p.ids[name] = id
	return id, nil
}

// forget takes names back that were assigned in vain.
func (p *Programs) forget(names []string) error {
	var errs []error
	for _, name := range names {
		id := p.ids[name]
		delete(p.ids, name)
		errs = append(errs, p.dropName(id), p.dropCounters([]uint32{id}))
	}
	return errors.Join(errs...)
}

// forgetExcept drops every name but these.
func (p *Programs) forgetExcept(keep map[string]bool) error {
	var gone []string
	for name := range p.ids {
		if !keep[name] {
			gone = append(gone, name)
		}
	}
	return p.forget(gone)
}

// buildTrie makes the map that holds a policy; ids are by index of the peer.
func (p *Programs) buildTrie(next *InForce, ids []uint32) (_ *ebpf.Map, err error) {
	pol := next.Policy
	spec, err := loadSockops()
	if err != nil {
		return nil, fmt.Errorf("read sockops object: %w", err)
	}
	trie, err := ebpf.NewMap(spec.Maps[sockopsMapShPolicy].InnerMap)
	if err != nil {
		return nil, fmt.Errorf("make policy trie: %w", err)
	}
	defer func() {
		if err != nil {
			trie.Close()
		}
	}()
	for _, prefix := range pol.Compile() {
		key := trieKey(prefix.Prefix)
		var value sockopsShRules
		if len(prefix.Rules) > len(value.Rule) {
			return nil, fmt.Errorf("add %s: %d rules, more than %d", prefix.Prefix, len(prefix.Rules), len(value.Rule))
		}
		for i, r := range prefix.Rules {
			next.setRule(&value.Rule[i], r, &pol.Peers[r.Peer], ids[r.Peer])
		}
		value.Count = uint32(len(prefix.Rules))
		if err := trie.Put(&key, &value); err != nil {
			return nil, fmt.Errorf("add %s to the policy trie: %w", prefix.Prefix, err)
		}
	}
	if err := addCanary(trie, next, ids); err != nil {
		return nil, err
	}
	return trie, nil
}

// setRule writes one rule as the programs read it.
func (f *InForce) setRule(to *sockopsShRule, r policy.Rule, peer *policy.Peer, id uint32) {
	to.Policy = id
	to.PortLo, to.PortHi = r.PortLo, r.PortHi
	to.Direction = uint8(r.Directions)
	to.Override = uint8(peer.Override)
	if peer.LeaveExisting {
		to.Flags |= uint8(sockopsShRuleFlagsSH_LEAVE_EXISTING)
	}
	if peer.KernelSockets {
		to.Flags |= uint8(sockopsShRuleFlagsSH_TAKE_KERNELS)
	}
	to.ConnectMs = uint32(peer.ConnectTimeout / time.Millisecond)
	o := f.Wanted(peer)
	to.Options.UserTimeoutMs = uint32(o.UserTimeout / time.Millisecond)
	to.Options.IdleS = uint16(o.Idle / time.Second)
	to.Options.IntervalS = uint16(o.Interval / time.Second)
	to.Options.Count = uint8(o.Count)
	to.Options.Keepalive = 1
	to.Options.RtoMax = uint8(o.RTOMax / (100 * time.Millisecond))
}

// trieKey maps IPv4 into IPv6: a /24 becomes ::ffff:a.b.c.0/120.
func trieKey(prefix netip.Prefix) sockopsShPrefix {
	bits := prefix.Bits()
	if prefix.Addr().Is4() {
		bits += 96
	}
	return sockopsShPrefix{Prefixlen: uint32(bits), Addr: prefix.Addr().As16()}
}

// NewInForce makes one by hand, for tests of who reads it. peers maps ids to
// indices in pol.Peers.
func NewInForce(pol *policy.Policy, peers map[uint32]int) *InForce {
	return &InForce{Policy: pol, Since: conn.Now(), peers: peers}
}
