// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/kernel"
)

// attachPinned puts the programs where those of the agent before are, or attaches
// and pins them. Whatever step it is cut short at, the next start finds its way
// (see found), and connections are bounded as far as they were.
func (p *Programs) attachPinned(cgroup string) error {
	// Before the links: a link that is pinned has its maps pinned, too.
	for name, m := range p.keptMaps() {
		if _, err := os.Lstat(p.pins.path(name)); err == nil {
			continue // it is for the programs that are attached as yet
		}
		if err := p.pins.putMap(name, m); err != nil {
			return err
		}
	}
	if err := p.upgrade(); err != nil {
		return err
	}
	var err error
	if p.before, err = p.Faults(); err != nil {
		return err
	}
	old := p.found.links
	if err := p.takeLinks(cgroup); err != nil {
		return err
	}
	if p.hadEnded && p.Lacks(kernel.Adopt) == nil {
		if err := p.watchAgain(); err != nil {
			return err
		}
	}
	p.takeover.Lost = errors.Join(p.takeover.Lost, p.addCounts())
	for i, name := range attachments {
		if old[name] == p.links[i] {
			continue // in its place already
		}
		if err := p.pins.put(name, p.links[i]); err != nil {
			return err
		}
	}
	return errors.Join(p.tidy(), p.Beat())
}

// watchAgain attaches the tracepoint that the agent before had.
func (p *Programs) watchAgain() error {
	done, ok := p.use()
	if !ok {
		return fmt.Errorf("attach tracepoint: %w", ErrClosed)
	}
	defer done()
	a, err := p.adopter()
	if err != nil {
		return err
	}
	return a.watch(p)
}

// takeLinks swaps the program of each link that is at the cgroup, and attaches
// the others. Links to elsewhere stay until their pins are replaced.
func (p *Programs) takeLinks(cgroup string) error {
	var st unix.Stat_t
	if err := unix.Stat(cgroup, &st); err != nil {
		return fmt.Errorf("look at cgroup %q: %w", cgroup, err)
	}
	for _, a := range at(p.sockops.ShSetsockopt, p.sockops.ShSockops) {
		l, err := p.swapProgram(&a, st.Ino)
		if err == nil && l == nil {
			l, err = a.attach(cgroup)
		}
		if err != nil {
			return err
		}
		p.links = append(p.links, l)
	}
	return nil
}

// swapProgram puts a program into the link that is pinned, where that is at the
// cgroup with this id; else it returns nil.
func (p *Programs) swapProgram(a *attachment, cgroup uint64) (link.Link, error) {
	l := p.found.links[a.name]
	if l == nil {
		return nil, nil
	}
	info, err := l.Info()
	if err != nil {
		return nil, fmt.Errorf("ask for the attachment of %s: %w", a.name, err)
	}
	switch info.Cgroup().CgroupId {
	case 0: // that cgroup was removed
		return nil, nil
	case cgroup:
	default:
		p.takeover.Moved = true
		return nil, nil
	}
	if err := l.Update(a.prog); errors.Is(err, unix.ENOLINK) {
		return nil, nil // removed just now
	} else if err != nil {
		return nil, fmt.Errorf("swap the %s program: %w", a.name, err)
	}
	return l, nil
}

// tidy makes the pins what they should be now that the links are.
func (p *Programs) tidy() (err error) {
	keep := map[string]bool{setsockoptName: true, sockopsName: true, endedName: p.watching.Load()}
	for name, m := range p.keptMaps() {
		keep[name] = true
		if err := p.pins.putMap(name, m); err != nil {
			return err
		}
	}
	// The handles of links that were swapped are ours now.
	for i, name := range attachments {
		if p.found.links[name] == p.links[i] {
			delete(p.found.links, name)
		}
	}
	// What is left was at another cgroup, and has lost its pin.
	if err := p.found.detach(); err != nil {
		return err
	}
	p.found.close()
	p.takeover.Swept, err = p.pins.sweep(keep)
	return err
}

// keptMaps are the maps that outlive the process.
func (p *Programs) keptMaps() map[string]*ebpf.Map {
	return map[string]*ebpf.Map{
		sockopsMapShPolicy:  p.sockops.ShPolicy,
		sockopsMapShStats:   p.sockops.ShStats,
		sockopsMapShFaults:  p.sockops.ShFaults,
		sockopsMapShEvents:  p.sockops.ShEvents,
		sockopsMapShRecords: p.sockops.ShRecords,
		sockopsMapShServers: p.sockops.ShServers,
		namesMap:            p.names,
		stateMap:            p.state,
	}
}

// Unpinned returns the names of the pins that somebody has removed since Attach:
// what they stand for may end with this process.
func (p *Programs) Unpinned() []string {
	if p.pins == nil || len(p.links) < Attachments {
		return nil
	}
	out := append(slices.Sorted(maps.Keys(p.keptMaps())), attachments[:]...)
	if p.watching.Load() {
		out = append(out, endedName)
	}
	return slices.DeleteFunc(out, func(name string) bool {
		_, err := os.Lstat(p.pins.path(name))
		return err == nil
	})
}

// closeKept lets go of the maps that only pinned programs have.
func (p *Programs) closeKept() error {
	p.swap.Lock() // Beat may come once more
	defer p.swap.Unlock()
	var errs []error
	for _, m := range []*ebpf.Map{p.names, p.state} {
		if m != nil {
			errs = append(errs, m.Close())
		}
	}
	p.names, p.state = nil, nil
	return errors.Join(errs...)
}
