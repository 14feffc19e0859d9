// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/kernel"
)

// upgrade takes over what is in maps that this build has in another layout. The
// counters are copied. The records of the sockets can only be reached by programs:
// those of the links are swapped for some that know both maps, so that from then
// on each socket has its record, wherever it is; a walk takes over all of them;
// then come the programs that know only the new map.
func (p *Programs) upgrade() error {
	if err := p.copyCounts(); err != nil {
		return err
	}
	// The tracepoint knows only the old records, and would tell a second time.
	if p.found.ended && len(p.found.others(sockopsMapShRecords, p.sockops.ShRecords)) > 0 {
		if err := remove(p.pins.path(endedName)); err != nil {
			return fmt.Errorf("take the tracepoint off: %w", err)
		}
		awaitGone(p.found.endedBy)
	}
	// The older is the last: one more there is where an upgrade was cut short.
	for _, old := range p.found.others(sockopsMapShRecords, p.sockops.ShRecords) {
		n, err := p.convert(old)
		p.takeover.Converted += n
		p.takeover.Lost = errors.Join(p.takeover.Lost, err)
	}
	return nil
}

// goneLimit is how long the kernel may take to free a link that has lost its pin: some
// milliseconds, more where it is busy.
const goneLimit = 2 * time.Second

// awaitGone returns when a program is gone, and so is what it was attached to: the
// kernel takes a tracepoint off some time after its last holder, and never at the
// asking. It gives up where somebody else holds it.
func awaitGone(id ebpf.ProgramID) {
	for began := time.Now(); id != 0 && time.Since(began) < goneLimit; time.Sleep(time.Millisecond) {
		prog, err := ebpf.NewProgramFromID(id)
		if errors.Is(err, os.ErrNotExist) {
			return
		}
		if err == nil {
			_ = prog.Close()
		}
	}
}

// bridge are the programs that know two maps of records.
type bridge struct {
	ShSetsockopt *ebpf.Program `ebpf:"sh_setsockopt"`
	ShSockops    *ebpf.Program `ebpf:"sh_sockops"`
}

func (b *bridge) close() error { return errors.Join(b.ShSetsockopt.Close(), b.ShSockops.Close()) }

// converter is the walk that takes records over.
type converter struct {
	ShConvert    *ebpf.Program  `ebpf:"sh_convert"`
	Converted    *ebpf.Variable `ebpf:"converted"`
	NotConverted *ebpf.Variable `ebpf:"not_converted"`
}

// convert takes over the records of one map, and returns how many it met. After an
// error some, or all, are not: their sockets keep the options that they have.
func (p *Programs) convert(old *ebpf.Map) (met uint64, err error) {
	var both bridge
	if err := p.loadConvert(&both, old); err != nil {
		return 0, fmt.Errorf("take over the records of another layout: %w", err)
	}
	if err := p.cross(&both); err != nil {
		return 0, errors.Join(err, both.close())
	}
	if lacks := p.Lacks(kernel.Scan); lacks != nil {
		p.stayOn(&both)
		return 0, fmt.Errorf("records of another layout are taken over one by one, when a program meets their connection: %w", lacks)
	}
	defer both.close()
	return p.convertAll(old)
}

// cross swaps the programs that know both maps into the links.
func (p *Programs) cross(both *bridge) error {
	for _, m := range []*ebpf.Map{p.names, p.state} {
		if err := both.ShSockops.BindMap(m); err != nil {
			return fmt.Errorf("bind map to the programs of an upgrade: %w", err)
		}
	}
	for _, a := range at(both.ShSetsockopt, both.ShSockops) {
		if l := p.found.links[a.name]; l != nil {
			if err := l.Update(a.prog); err != nil && !errors.Is(err, unix.ENOLINK) {
				return fmt.Errorf("swap the %s program: %w", a.name, err)
			}
		}
	}
	return nil
}

// stayOn makes the programs that know both maps those that are attached: without
// a walk there is no end to the upgrade, and the next start finds both maps again.
func (p *Programs) stayOn(both *bridge) {
	_ = p.sockops.sockopsPrograms.Close()
	p.sockops.ShSetsockopt, p.sockops.ShSockops = both.ShSetsockopt, both.ShSockops
}

// convertAll walks over the records of one map.
func (p *Programs) convertAll(old *ebpf.Map) (met uint64, err error) {
	var walk converter
	if err := p.loadConvert(&walk, old); err != nil {
		return 0, fmt.Errorf("take over the records of another layout: %w", err)
	}
	defer walk.ShConvert.Close()
	// A program that still runs may be about to fill in a record.
	if err := p.awaitPrograms(); err != nil {
		return 0, err
	}
	if err := walkRecords(walk.ShConvert, old); err != nil {
		return 0, err
	}
	var failed uint64
	if err := errors.Join(walk.Converted.Get(&met), walk.NotConverted.Get(&failed)); err != nil {
		return 0, fmt.Errorf("count the records: %w", err)
	}
	if failed > 0 {
		err = fmt.Errorf("take over the records of another layout: no memory for %d", failed)
	}
	return met, err
}

// loadConvert loads those programs of an upgrade that a struct names.
func (p *Programs) loadConvert(to any, old *ebpf.Map) error {
	spec, err := loadConvert()
	if err != nil {
		return fmt.Errorf("read convert object: %w", err)
	}
	if err := setHZ(spec); err != nil {
		return err
	}
	if err := errors.Join(
		spec.Variables[convertVarCanSetOthers].Set(p.noHold == nil),
		spec.Variables[convertVarOldWords].Set(old.ValueSize()/4),
	); err != nil {
		return fmt.Errorf("configure convert object: %w", err)
	}
	spec.Maps[convertMapShOldRecords].ValueSize = old.ValueSize() // whatever build it is of
	maps := map[string]*ebpf.Map{convertMapShOldRecords: old}
	for name, m := range p.keptMaps() {
		if spec.Maps[name] != nil {
			maps[name] = m
		}
	}
	if err := spec.LoadAndAssign(to, p.types.options(maps)); err != nil {
		return loadError("convert", err)
	}
	return nil
}

// walkRecords runs a program over each record of a map, in all namespaces.
func walkRecords(prog *ebpf.Program, records *ebpf.Map) error {
	it, err := link.AttachIter(link.IterOptions{Program: prog, Map: records})
	if err != nil {
		return fmt.Errorf("attach walk of records: %w", err)
	}
	defer it.Close()
	rows, err := it.Open()
	if err != nil {
		return fmt.Errorf("open walk of records: %w", err)
	}
	defer rows.Close()
	if _, err := io.Copy(io.Discard, onward{rows}); err != nil {
		return fmt.Errorf("walk records: %w", err)
	}
	return nil
}

// awaitPrograms returns when no program runs any more that ran when it was called:
// the kernel waits for that when a map in a map is replaced, be it by itself.
func (p *Programs) awaitPrograms() error {
	trie, err := p.openPolicy()
	if err != nil || trie == nil {
		return err // without a policy no program has begun a record
	}
	defer trie.Close()
	if err := p.sockops.ShPolicy.Put(uint32(0), trie); err != nil {
		return fmt.Errorf("wait for the programs: %w", err)
	}
	return nil
}
