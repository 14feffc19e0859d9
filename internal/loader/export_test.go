// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/kernel"
)

// LoadOlder is LoadPinned for a build whose records are shorter and whose counters
// and constants have other limits.
func LoadOlder(pins *Pins) (*Programs, error) {
	return load(&Programs{pins: pins, older: func(spec *ebpf.CollectionSpec) {
		records := spec.Maps[sockopsMapShRecords]
		now := records.Value.(*btf.Struct)
		last := len(now.Members) - 1
		records.ValueSize = now.Members[last].Offset.Bytes()
		older := *now
		older.Size, older.Members = records.ValueSize, now.Members[:last:last]
		records.Value = &older
		spec.Maps[sockopsMapShStats].MaxEntries /= 2
		spec.Maps[sockopsMapShFaults].MaxEntries *= 2
	}})
}

// TypesWithout are the running kernel's types as they were without members of structs,
// which are those of the programs' own types: of what the kernel lacks all the same
// nothing is taken.
func TypesWithout(gone map[string][]string) (*Types, error) {
	of, err := btf.LoadKernelSpec()
	if err != nil {
		return nil, err
	}
	object, err := loadLookup()
	if err != nil {
		return nil, err
	}
	for name, members := range gone {
		var ours, kernels *btf.Struct
		if err := errors.Join(object.Types.TypeByName(name, &ours), of.TypeByName(name, &kernels)); err != nil {
			return nil, fmt.Errorf("struct %s: %w", name, err)
		}
		for _, member := range members {
			is := func(m btf.Member) bool { return m.Name == member }
			if !slices.ContainsFunc(ours.Members, is) {
				return nil, fmt.Errorf("no program reads %s of struct %s", member, name)
			}
			if i := slices.IndexFunc(kernels.Members, is); i >= 0 {
				kernels.Members[i].Name += "_gone"
			}
		}
	}
	return &Types{altered: of}, nil
}

// LoadsConvert loads the programs of an upgrade: the walk where the kernel has it.
func LoadsConvert(p *Programs) error {
	var both bridge
	if err := p.loadConvert(&both, p.sockops.ShRecords); err != nil {
		return err
	}
	if err := both.close(); err != nil || p.Lacks(kernel.Scan) != nil {
		return err
	}
	var all converter
	if err := p.loadConvert(&all, p.sockops.ShRecords); err != nil {
		return err
	}
	return all.ShConvert.Close()
}

// AliveAgo returns how long ago the state that is pinned in a directory says that
// an agent was alive.
func AliveAgo(dir string) (time.Duration, error) {
	m, err := ebpf.LoadPinnedMap(filepath.Join(dir, stateMap), nil)
	if err != nil {
		return 0, err
	}
	defer m.Close()
	s, err := readState(m)
	return boottime() - time.Duration(s.AliveBoot), err
}

// AttachedTo asks for the programs that run for the sockets of a cgroup.
func AttachedTo(fd int, typ ebpf.AttachType) ([]ebpf.ProgramID, error) {
	ids, _, err := attachedTo(fd, typ, unix.BPF_F_QUERY_EFFECTIVE)
	return ids, err
}

// WithoutRecordsIterator loads the silence watch as a kernel does that has no
// iterator over socket storage.
func (p *Programs) WithoutRecordsIterator() {
	_, _ = p.loadSilencer(func() (*ebpf.CollectionSpec, error) {
		spec, err := loadSilence()
		if err == nil {
			spec.Programs[silenceProgShSilence].AttachTo = "no_such_iterator"
		}
		return spec, err
	})
}

// GuardedBefore has it that the guard saw to a socket so many seconds ago.
func GuardedBefore(p *Programs, fd, s int) error {
	return p.alter(fd, func(r *sockopsShRecord) { r.GuardS -= uint16(s) })
}

// Flags of a record.
const (
	FlagAmbiguous  = uint8(adoptShRecordFlagsSH_AMBIGUOUS)
	FlagReleasing  = uint8(adoptShRecordFlagsSH_RELEASING)
	FlagConnecting = uint8(adoptShRecordFlagsSH_CONNECTING)
)

// Flagged puts flags on the record of a socket.
func Flagged(p *Programs, fd int, flags uint8) error {
	return p.alter(fd, func(r *sockopsShRecord) { r.Flags |= flags })
}

// ProbedUntil has it that a socket is the prober's until then, on CLOCK_MONOTONIC.
func ProbedUntil(p *Programs, fd int, until time.Duration) error {
	return p.alter(fd, func(r *sockopsShRecord) { r.LeaveNs = uint64(until) })
}

// alter changes the record of a socket.
func (p *Programs) alter(fd int, change func(*sockopsShRecord)) error {
	key, r := uint32(fd), sockopsShRecord{}
	if err := p.sockops.ShRecords.Lookup(key, &r); err != nil {
		return err
	}
	change(&r)
	return p.sockops.ShRecords.Put(key, &r)
}

// KilledJudging has it that the agent that provoked a socket's keepalive was killed.
func KilledJudging(p *Programs, fd int) error {
	key, r := uint32(fd), sockopsShRecord{}
	if err := p.sockops.ShRecords.Lookup(key, &r); err != nil {
		return err
	}
	r.LeaveNs = 0
	return p.sockops.ShRecords.Put(key, &r)
}
