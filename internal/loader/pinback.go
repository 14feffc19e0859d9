// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// standing is the policy that was in force before this start, for a start that fails.
type standing struct {
	trie *ebpf.Map
	kept state // with its revision
}

// openPolicy opens the policy that the programs have; nil: none.
func (p *Programs) openPolicy() (*ebpf.Map, error) {
	var id uint32
	if err := p.sockops.ShPolicy.Lookup(uint32(0), &id); errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("read the policy in force: %w", err)
	}
	trie, err := ebpf.NewMapFromID(ebpf.MapID(id))
	if err != nil {
		return nil, fmt.Errorf("open the policy in force: %w", err)
	}
	return trie, nil
}

// rememberPolicy keeps hold of the policy of the agent before, when the first of this
// one is about to take its place. There is none to go back to where that agent's maps
// have another layout: its programs read their own until Attach swaps them.
func (p *Programs) rememberPolicy() error {
	if !p.takeover.Links || p.inForce.Load() != nil || p.stood != nil {
		return nil
	}
	trie, err := p.openPolicy()
	if err != nil || trie == nil {
		return err
	}
	p.stood = &standing{trie, p.kept}
	return nil
}

// Settle says that the start has succeeded: Abandon puts no older policy back any more.
func (p *Programs) Settle() error {
	p.swap.Lock()
	defer p.swap.Unlock()
	if p.stood == nil {
		return nil
	}
	trie := p.stood.trie
	p.stood = nil
	return trie.Close()
}

// Abandon undoes a start that fails, before Close. A first one leaves nothing pinned.
// Where programs were attached before it, they stay, or those that have taken their
// place, and the policy that they had is in force again.
func (p *Programs) Abandon() error {
	if p.pins == nil {
		return nil
	}
	if !p.takeover.Links {
		return p.pins.Remove()
	}
	p.swap.Lock()
	defer p.swap.Unlock()
	if p.stood == nil {
		return nil
	}
	if err := p.sockops.ShPolicy.Put(uint32(0), p.stood.trie); err != nil {
		return fmt.Errorf("put the policy back that was in force: %w [start the agent with it]", err)
	}
	was := &p.stood.kept
	p.kept.Revision, p.kept.InForceBoot, p.kept.InForceReal = was.Revision, was.InForceBoot, was.InForceReal
	return p.putState()
}
