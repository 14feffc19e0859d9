// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/cilium/ebpf"
)

// holderWalks are the walks over those who hold network namespaces.
type holderWalks struct {
	extra[*holdersObjects]
	mu   sync.Mutex // held by a walk: the map is one
	pass uint64     // held by mu
}

// loadHolderWalks loads them, in their older form where the kernel has no better
// (before Linux 5.11).
func (p *Programs) loadHolderWalks() (*holdersObjects, error) {
	var errs []error
	for _, sockFromFile := range []bool{true, false} {
		objects := new(holdersObjects)
		err := loadHoldersForm(objects, sockFromFile, p.types)
		if err == nil {
			return objects, nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("walk holders of network namespaces: %w: %w", ErrUnsupported, errors.Join(errs...))
}

func loadHoldersForm(to *holdersObjects, sockFromFile bool, types *Types) error {
	spec, err := loadHolders()
	if err != nil {
		return fmt.Errorf("read holders object: %w", err)
	}
	if err := spec.Variables[holdersVarCanSockFromFile].Set(sockFromFile); err != nil {
		return fmt.Errorf("configure holders object: %w", err)
	}
	if err := spec.LoadAndAssign(to, types.options(nil)); err != nil {
		return loadError("holders", err)
	}
	return nil
}

// Residents calls fn for threads by the network namespace that they work in: at
// least one for each namespace that is not known (by its inode number), at most
// a few, of as many processes. All threads of the node are walked, not only each
// process's first, and except those of this process.
//
// tid is the thread's number in the first process id namespace, whatever this
// process's own is. It may have exited or gone elsewhere by now, so that the
// number is somebody else's: whoever follows it compares what it finds. fn must
// call neither Residents nor Holders.
//
// The error wraps ErrUnsupported where the walk could not be loaded: on Linux
// 5.10 under lockdown.
func (p *Programs) Residents(known []uint32, fn func(tid int, inode uint32)) error {
	return p.walkHolders(known, func(o *holdersObjects) *ebpf.Program { return o.ShResidents },
		func(h holdersShHolder) { fn(int(h.Tid), h.Inode) })
}

// Holders calls fn for open files that keep a namespace alive: sockets, and
// descriptors of namespaces, those of other kinds than network namespaces
// included, since their inode numbers are of one range. The rest is as
// Residents has it. fd is the descriptor's number in the thread's table, which
// is its process's except where it has one of its own.
//
// Not found are files that are in no table: on their way through a Unix socket,
// or registered with io_uring alone; and sockets of the kernel's own. Left out
// are descriptors with O_APPEND, by which package netns marks those that hold
// nothing but watch.
func (p *Programs) Holders(known []uint32, fn func(tid, fd int, inode uint32)) error {
	return p.walkHolders(known, func(o *holdersObjects) *ebpf.Program { return o.ShHolders },
		func(h holdersShHolder) { fn(int(h.Tid), int(h.Fd), h.Inode) })
}

func (p *Programs) walkHolders(known []uint32, of func(*holdersObjects) *ebpf.Program, row func(holdersShHolder)) error {
	done, ok := p.use()
	if !ok {
		return fmt.Errorf("walk holders of network namespaces: %w", ErrClosed)
	}
	defer done()
	h := &p.holders
	if _, err := h.get(p.loadHolderWalks); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	told, err := h.begin(known)
	if err == nil {
		err = walk(of(h.objects), binary.Size(holdersShHolder{}), func(b []byte) error {
			var one holdersShHolder
			if _, err := binary.Decode(b, binary.NativeEndian, &one); err != nil {
				return err
			}
			told[one.Inode] = true
			row(one)
			return nil
		})
	}
	if err = errors.Join(err, h.end(told)); err != nil {
		return fmt.Errorf("walk holders of network namespaces: %w", err)
	}
	return nil
}

// begin tells the programs what is known. told has what is in the map then.
func (h *holderWalks) begin(known []uint32) (told map[uint32]bool, err error) {
	told = make(map[uint32]bool, len(known))
	h.pass++
	if err := h.objects.ShPass.Set(h.pass); err != nil {
		return told, fmt.Errorf("count the walk: %w", err)
	}
	enough := holdersShSaid{Pass: h.pass, Rows: uint32(holdersShHoldersLimitsSH_HOLDERS_ROWS)}
	for _, inode := range known {
		if err := h.objects.ShTold.Put(inode, &enough); err != nil {
			return told, fmt.Errorf("name %d as known: %w", inode, err)
		}
		told[inode] = true
	}
	return told, nil
}

// end empties the map. What stays in it after an error does no harm but take
// room: the next walk has another number.
func (h *holderWalks) end(told map[uint32]bool) error {
	for inode := range told {
		if err := h.objects.ShTold.Delete(inode); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("forget %d: %w", inode, err)
		}
	}
	return nil
}
