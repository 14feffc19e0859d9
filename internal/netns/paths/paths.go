// SPDX-License-Identifier: Apache-2.0

package paths

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/netns"
)

// interval is how often Watch looks. A look takes some microseconds.
const interval = time.Second

// Paths are the namespaces that paths lead to. It must be closed.
type Paths struct {
	// looking is held by a look until whom it concerns was told. It is taken before mu.
	looking sync.Mutex
	tell    func(old, now uint32)

	mu   sync.Mutex
	list []*path // nil: closed
}

// path is one of them.
type path struct {
	name  string
	fixed bool      // a process's, held for good
	ns    *netns.NS // what it led to last
	err   error     // why it does not lead there now, nil where it does
}

// Open opens what each path leads to. The errors are those of netns.Open.
func Open(names []string) (*Paths, error) {
	p := new(Paths)
	for _, name := range names {
		ns, err := netns.OpenAside(name)
		if err != nil {
			return nil, errors.Join(err, p.Close())
		}
		p.list = append(p.list, &path{name: name, fixed: fixed(name), ns: ns})
	}
	return p, nil
}

// fixed reports whether a path ends in procfs, as /proc/PID/ns/net and /proc/PID/fd/N do,
// by way of links too.
func fixed(name string) bool {
	const most = 40 // links, as the kernel follows
	for range most {
		target, err := os.Readlink(name)
		if err != nil {
			return false // no link
		}
		var fs unix.Statfs_t
		if unix.Statfs(filepath.Dir(name), &fs) == nil && fs.Type == unix.PROC_SUPER_MAGIC {
			return true
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(filepath.Dir(name), target)
		}
		name = target
	}
	return false
}

// All returns a handle of each namespace, which the caller closes.
func (p *Paths) All() []*netns.NS {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []*netns.NS
	for _, one := range p.list {
		if slices.ContainsFunc(all, func(have *netns.NS) bool { return have.Inode() == one.ns.Inode() }) {
			continue // two paths lead there
		}
		if ns, err := one.ns.Dup(); err == nil { // always: they are open
			all = append(all, ns)
		}
	}
	return all
}

// ByInode returns a handle of the namespace with this number, which the caller closes;
// false where no path led there when they were last looked at.
func (p *Paths) ByInode(inode uint32) (*netns.NS, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, one := range p.list {
		if one.ns.Inode() == inode {
			ns, err := one.ns.Dup()
			return ns, err == nil
		}
	}
	return nil, false
}

// Covers reports whether a path leads to the namespace with this number. Where none did
// it looks at the paths.
func (p *Paths) Covers(inode uint32) bool {
	for looked := false; ; looked = true {
		if ns, ok := p.ByInode(inode); ok {
			_ = ns.Close()
			return true
		}
		if looked {
			return false
		}
		p.Look()
	}
}

// Err says which paths lead nowhere by the last look, nil where all lead somewhere.
func (p *Paths) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, one := range p.list {
		errs = append(errs, one.err)
	}
	return errors.Join(errs...)
}

// Tell has fn called for each path that leads to another namespace from now on, with the
// numbers of both. Calls come one after the other; fn must not make Paths look.
func (p *Paths) Tell(fn func(old, now uint32)) {
	p.looking.Lock()
	defer p.looking.Unlock()
	p.tell = fn
}

// Look looks where each path leads now.
func (p *Paths) Look() {
	p.looking.Lock()
	defer p.looking.Unlock()
	p.mu.Lock()
	list := slices.Clone(p.list)
	p.mu.Unlock()
	for _, one := range list {
		if one.fixed {
			continue
		}
		old, now, changed := p.look(one)
		if changed && p.tell != nil {
			p.tell(old, now)
		}
	}
}

// look looks where one path leads. looking is held: nobody else changes it.
func (p *Paths) look(one *path) (old, now uint32, changed bool) {
	old = one.ns.Inode()
	var ns *netns.NS
	var err error
	same := netns.Leads(one.name, old)
	if !same {
		ns, err = netns.OpenAside(one.name)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case same:
		one.err = nil
	case err != nil:
		one.err = fmt.Errorf("%w; what it led to last, netns %d, is kept", err, old)
	case ns.Inode() == old: // it came back meanwhile
		one.err = ns.Close()
	default:
		_ = one.ns.Close()
		one.ns, one.err = ns, nil
		return old, ns.Inode(), true
	}
	return old, old, false
}

// Watch looks every second until ctx ends.
func (p *Paths) Watch(ctx context.Context) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			p.Look()
		}
	}
}

// Close lets go of all. Handles that were given out stay open.
func (p *Paths) Close() error {
	p.looking.Lock()
	defer p.looking.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, one := range p.list {
		errs = append(errs, one.ns.Close())
	}
	p.list = nil
	return errors.Join(errs...)
}
