// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// counts are the counters of a map that are taken over into one of another layout.
// Both consist of words that are only ever appended.
type counts struct {
	name     string
	from, to *ebpf.Map
	copied   map[uint32][]uint64 // by key: the sums that were copied
}

// countsToCopy are the counters that this build has in another layout.
func (p *Programs) countsToCopy() []*counts {
	var out []*counts
	for name, m := range map[string]*ebpf.Map{
		sockopsMapShStats: p.sockops.ShStats, sockopsMapShFaults: p.sockops.ShFaults,
	} {
		if old := p.found.others(name, m); len(old) > 0 {
			out = append(out, &counts{name: name, from: old[0], to: m, copied: make(map[uint32][]uint64)})
		}
	}
	return out
}

// copyCounts copies them, those of policies that have a name. Nothing counts in the
// new ones yet; where something does, a start that was cut short has copied them.
func (p *Programs) copyCounts() error {
	p.counts = p.countsToCopy()
	for _, c := range p.counts {
		for _, key := range p.keysOf(c) {
			if err := c.copy(key); err != nil {
				return err
			}
		}
	}
	return nil
}

// keysOf are the keys that both maps may have.
func (p *Programs) keysOf(c *counts) []uint32 {
	var keys []uint32
	if c.name == sockopsMapShStats {
		for _, id := range p.ids {
			keys = append(keys, id)
		}
		return keys
	}
	for i := range min(c.from.MaxEntries(), c.to.MaxEntries()) {
		keys = append(keys, i)
	}
	return keys
}

// copy copies the counters under one key.
func (c *counts) copy(key uint32) error {
	old, err := sums(c.from, key)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil // a name that is new
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", c.name, err)
	}
	c.copied[key] = old
	now, err := sums(c.to, key)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("read %s: %w", c.name, err)
	}
	if !zero(now) || zero(old) {
		return nil
	}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return fmt.Errorf("count the CPUs: %w", err)
	}
	values := make([][]byte, cpus)
	for i := range values {
		values[i] = make([]byte, c.to.ValueSize())
	}
	for i := range min(len(old), len(values[0])/8) {
		binary.NativeEndian.PutUint64(values[0][8*i:], old[i])
	}
	if err := c.to.Put(key, values); err != nil {
		return fmt.Errorf("write %s: %w", c.name, err)
	}
	return nil
}

// addCounts adds what the programs before have counted since, now that they run no
// more. A program does it: others count already.
func (p *Programs) addCounts() error {
	if len(p.counts) == 0 {
		return nil
	}
	defer func() { p.counts = nil }()
	if err := p.awaitPrograms(); err != nil {
		return err
	}
	var adder struct {
		ShAdd *ebpf.Program `ebpf:"sh_add"`
	}
	if err := p.loadConvert(&adder, p.sockops.ShRecords); err != nil {
		return fmt.Errorf("add to the counters: %w", err)
	}
	defer adder.ShAdd.Close()
	for _, c := range p.counts {
		for _, one := range c.since(p.keysOf(c)) {
			packet, err := binary.Append(nil, binary.NativeEndian, one)
			if err != nil {
				return fmt.Errorf("add to %s: %w", c.name, err)
			}
			if result, err := adder.ShAdd.Run(&ebpf.RunOptions{Data: packet}); err != nil || result != 0 {
				return fmt.Errorf("add to %s: program returned %d: %w", c.name, result, err)
			}
		}
	}
	return nil
}

// since are the sums of what was counted in the old map after it was copied.
func (c *counts) since(keys []uint32) (out []*convertShAddition) {
	faults := &convertShAddition{}
	for _, key := range keys {
		now, err := sums(c.from, key)
		before := c.copied[key]
		if err != nil || before == nil {
			continue
		}
		if c.name == sockopsMapShFaults {
			if int(key) < len(faults.N) {
				faults.N[key] = now[0] - before[0]
			}
			continue
		}
		one := &convertShAddition{Policy: key}
		for i := range min(len(one.N), len(now)) {
			one.N[i] = now[i] - before[i]
		}
		out = append(out, one)
	}
	if c.name == sockopsMapShFaults {
		out = append(out, faults)
	}
	return out
}

// sums adds up the words under a key of a map over the CPUs.
func sums(m *ebpf.Map, key uint32) ([]uint64, error) {
	var perCPU [][]byte
	if err := m.Lookup(key, &perCPU); err != nil {
		return nil, err
	}
	out := make([]uint64, m.ValueSize()/8)
	for _, b := range perCPU {
		for i := range out {
			out[i] += binary.NativeEndian.Uint64(b[8*i:])
		}
	}
	return out, nil
}

// zero reports whether all are 0.
func zero(words []uint64) bool {
	for _, w := range words {
		if w != 0 {
			return false
		}
	}
	return true
}
