// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// What is kept beside the maps of the programs, for the next agent: which name an
// id has, and how it stood at the last beat. Both are bound to the sockops program,
// so that they go wherever its link goes.
const (
	namesMap = "sh_names"
	stateMap = "sh_state"
)

// layout is SH_LAYOUT of bpf/sockhealth.h.
const layout = 3

// name is a policy's name with zeros behind it. Names have at most 63 bytes.
type name [64]byte

func newName(s string) (n name) {
	copy(n[:len(n)-1], s)
	return n
}

func (n name) String() string { return text(n[:]) }

// state is the one value of its map. Later builds append to it.
type state struct {
	Layout   uint32 // of the build that has written it
	NextID   uint32 // no policy ever had it or a greater one
	Revision [16]byte
	// When that policy came into force, and when an agent was last seen alive:
	// CLOCK_BOOTTIME, and since 1970. Nanoseconds.
	InForceBoot, InForceReal int64
	AliveBoot, AliveReal     int64
	Spare                    [8]uint64
}

func namesSpec(entries uint32) *ebpf.MapSpec {
	return &ebpf.MapSpec{
		Name: namesMap, Type: ebpf.Hash, KeySize: 4, ValueSize: uint32(len(name{})),
		MaxEntries: entries, Flags: unix.BPF_F_NO_PREALLOC,
	}
}

func stateSpec() *ebpf.MapSpec {
	return &ebpf.MapSpec{
		Name: stateMap, Type: ebpf.Array, KeySize: 4, ValueSize: uint32(binary.Size(state{})), MaxEntries: 1,
	}
}

// openKept opens or makes names and state, takes over what is in them, and binds
// them to the sockops program.
func (p *Programs) openKept() (err error) {
	if p.names, err = p.openBound(namesSpec(p.sockops.ShStats.MaxEntries())); err != nil {
		return err
	}
	state, err := p.openBound(stateSpec())
	if err != nil {
		return err
	}
	if err = p.takeState(); err == nil {
		err = p.takeNames()
	}
	if err != nil {
		return errors.Join(err, state.Close()) // as it was
	}
	p.state = state
	if !p.takeover.Links {
		p.stamp()
	}
	return p.putState()
}

// openBound opens or makes a map that no program uses, and binds it to one.
func (p *Programs) openBound(spec *ebpf.MapSpec) (*ebpf.Map, error) {
	m, err := p.openMap(spec)
	if err != nil {
		return nil, err
	}
	if err := p.sockops.ShSockops.BindMap(m); err != nil {
		return nil, errors.Join(fmt.Errorf("bind map %s: %w", spec.Name, err), m.Close())
	}
	return m, nil
}

// openMap returns the map that is pinned, where it is one for spec, or a new one.
func (p *Programs) openMap(spec *ebpf.MapSpec) (m *ebpf.Map, err error) {
	if have := p.found.usable(spec.Name, spec); have != nil {
		m, err = have.Clone()
	} else {
		m, err = ebpf.NewMap(spec)
	}
	if err != nil {
		return nil, fmt.Errorf("make map %s: %w", spec.Name, err)
	}
	return m, nil
}

// takeState reads what the last agent has left, of whatever build.
func (p *Programs) takeState() error {
	maps := p.found.maps[stateMap]
	if len(maps) == 0 {
		return nil
	}
	old, err := readState(maps[0])
	if err != nil {
		return err
	}
	p.kept = old
	if len(p.found.links) > 0 && old.AliveBoot > 0 {
		p.takeover.Unattended = max(0, boottime()-time.Duration(old.AliveBoot))
		p.takeover.Revision = text(old.Revision[:])
	}
	return nil
}

// readState reads the part that this build knows of.
func readState(m *ebpf.Map) (s state, err error) {
	b := make([]byte, max(int(m.ValueSize()), binary.Size(s)))
	if err := m.Lookup(uint32(0), b[:m.ValueSize()]); err != nil {
		return s, fmt.Errorf("read state: %w", err)
	}
	_, err = binary.Decode(b, binary.NativeEndian, &s)
	return s, err
}

// layoutOf reads it from a state map of whatever size; 0: it cannot be told.
func layoutOf(m *ebpf.Map) uint32 {
	s, err := readState(m)
	if err != nil {
		return 0
	}
	return s.Layout
}

// takeNames reads which policy has which id, and makes sure that no id is given
// twice. Counters that no name stands for are freed.
func (p *Programs) takeNames() error {
	old := p.found.maps[namesMap]
	var id uint32
	if len(old) > 0 {
		value := make([]byte, old[0].ValueSize())
		for it := old[0].Iterate(); it.Next(&id, &value); {
			p.ids[text(value)] = id
			p.kept.NextID = max(p.kept.NextID, id+1)
			if !sameMap(old[0], p.names) {
				if err := p.names.Put(id, newName(text(value))); err != nil {
					return fmt.Errorf("take over the name of policy id %d: %w", id, err)
				}
			}
		}
	}
	for name, id := range p.ids {
		if err := p.seeToCounters(id); err != nil {
			return fmt.Errorf("make counters of peer %q: %w", name, err)
		}
	}
	orphans := p.takeIDs()
	p.nextID = max(p.nextID, p.kept.NextID)
	if len(old) == 0 {
		return nil // the names were lost, sockets still count under their ids
	}
	return p.dropCounters(orphans)
}

// takeIDs looks for ids that have counters, and returns those without a name.
func (p *Programs) takeIDs() (orphans []uint32) {
	named := make(map[uint32]bool)
	for _, id := range p.ids {
		named[id] = true
	}
	for _, stats := range p.found.maps[sockopsMapShStats] {
		var next uint32
		for err := stats.NextKey(nil, &next); err == nil; err = stats.NextKey(next, &next) {
			p.kept.NextID = max(p.kept.NextID, next+1)
			if !named[next] && sameMap(stats, p.sockops.ShStats) {
				orphans = append(orphans, next)
			}
		}
	}
	return orphans
}

// keepID keeps the ids that are given from being given again, whatever happens.
func (p *Programs) keepID(next uint32) error {
	p.nextID = next
	return p.putState()
}

// keepName keeps the name of an id.
func (p *Programs) keepName(id uint32, s string) error {
	if p.names == nil {
		return nil
	}
	return p.names.Put(id, newName(s))
}

// dropName forgets it.
func (p *Programs) dropName(id uint32) error {
	if p.names == nil {
		return nil
	}
	if err := p.names.Delete(id); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("forget the name of policy id %d: %w", id, err)
	}
	return nil
}

// keepPolicy notes which policy is in force from now on.
func (p *Programs) keepPolicy(revision string) error {
	p.kept.Revision = [16]byte{}
	copy(p.kept.Revision[:], revision)
	p.kept.InForceBoot, p.kept.InForceReal = int64(boottime()), time.Now().UnixNano()
	return p.putState()
}

// putState writes the state.
func (p *Programs) putState() error {
	if p.state == nil {
		return nil
	}
	p.kept.Layout, p.kept.NextID = layout, p.nextID
	if err := p.state.Put(uint32(0), &p.kept); err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	return nil
}

// stamp notes that an agent is alive now.
func (p *Programs) stamp() {
	p.kept.AliveBoot, p.kept.AliveReal = int64(boottime()), time.Now().UnixNano()
}

// Beat tells the next agent that this one is alive now. The time without an agent
// that Unattended returns there counts from the last beat, or from Close. It does
// nothing unless programs are attached that outlive the process.
func (p *Programs) Beat() error {
	if len(p.links) < Attachments {
		return nil // a start that fails is no agent
	}
	p.swap.Lock()
	defer p.swap.Unlock()
	p.stamp()
	return p.putState()
}

// Takeover is what a start found pinned.
type Takeover struct {
	// Links says that programs were attached: connections were bounded with no
	// agent running.
	Links bool
	// Unattended is for how long.
	Unattended time.Duration
	// Revision is that of the policy in force until then.
	Revision string
	// Moved says that they were attached to another cgroup.
	Moved bool
	// Converted are the records that were taken over from another layout, Lost
	// why some were not (their sockets keep the options that they have), or why
	// the counters lack what was counted in the moment of the change.
	Converted uint64
	Lost      error
	// Swept are the pins that only another version knows, removed.
	Swept []string
}

// Takeover returns what this start found. It is complete after Attach.
func (p *Programs) Takeover() Takeover { return p.takeover }

// Unattended returns for how long, before this agent, connections were bounded
// with no agent running; 0 where it took nothing over.
func (p *Programs) Unattended() time.Duration { return p.takeover.Unattended }

// text cuts off the zeros behind it.
func text(b []byte) string {
	b, _, _ = bytes.Cut(b, []byte{0})
	return string(b)
}
