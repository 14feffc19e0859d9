// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/netns"
)

// The errors that callers tell apart.
var (
	// ErrForeignPIDs says that this process is in a process id namespace of
	// its own and sees the processes of that one alone.
	ErrForeignPIDs = errors.New("only the processes of this process id namespace are in sight")
	// ErrClosed says that the registry was closed.
	ErrClosed = errors.New("registry is closed")
)

// Walker walks over what holds network namespaces, except this process.
// *loader.Programs is one.
type Walker interface {
	// Residents tells threads by the namespace that they work in, a few for
	// each inode number that is not known.
	Residents(known []uint32, fn func(tid int, inode uint32)) error
	// Holders tells sockets and descriptors of namespaces in the same way.
	Holders(known []uint32, fn func(tid, fd int, inode uint32)) error
}

// Registry holds the node's network namespaces open. It must be closed.
type Registry struct {
	walker Walker // nil: /proc alone
	proc   string // where procfs is mounted
	home   uint32 // the process's own namespace; never dropped
	wake   chan struct{}

	// refreshing is held by a refresh and while subscribers are called. It is
	// taken before mu.
	refreshing  sync.Mutex
	subscribers []*subscriber
	walked      time.Time                // when the last walk over files began
	missing     map[uint32]netns.Refusal // told by a walk and not found, that time
	denied      map[uint32]netns.Refusal // not to be opened, that time
	pace        time.Duration            // from then to one that nobody asked for, at least

	mu      sync.Mutex
	entries map[uint32]*entry // nil: closed
	asked   map[uint32]time.Time
	status  Status
	pause   time.Duration // from the end of a refresh to one that is asked for
}

// entry is one namespace.
type entry struct {
	ns     *netns.NS
	unsure int // refreshes in a row that could not tell whether it is in use
}

// Status says what the last refresh came to.
type Status struct {
	Ended      time.Time     // the zero time: there was none yet
	Took       time.Duration // of which most is spent in the kernel
	Namespaces int           // held open
	// Denied counts what is there and may not be looked at: namespaces where a
	// Walker told them, else processes; and names.
	Denied int
	// Unknown counts the namespaces that Unknown named of late and no refresh
	// found.
	Unknown int
	// Err is what the refresh returned.
	Err error
}

// New returns a registry that knows the process's own namespace. A nil walker
// leaves out what /proc does not show.
func New(w Walker) (*Registry, error) {
	ns, err := netns.Current()
	if err == nil {
		err = mark(ns)
	}
	if err != nil {
		return nil, fmt.Errorf("make registry of network namespaces: %w", err)
	}
	return &Registry{
		walker: w, proc: "/proc", home: ns.Inode(), wake: make(chan struct{}, 1),
		entries: map[uint32]*entry{ns.Inode(): {ns: ns}},
		asked:   make(map[uint32]time.Time),
		status:  Status{Namespaces: 1},
	}, nil
}

// mark makes a descriptor one that does not count as a user.
func mark(ns *netns.NS) error {
	if _, err := unix.FcntlInt(uintptr(ns.FD()), unix.F_SETFL, unix.O_APPEND); err != nil {
		return errors.Join(fmt.Errorf("mark %s as watched: %w", ns, err), ns.Close())
	}
	return nil
}

// All returns a handle of every namespace known, in the order of their inode
// numbers. The caller closes the handles; they cost no descriptors.
func (r *Registry) All() []*netns.NS {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]*netns.NS, 0, len(r.entries))
	for _, inode := range slices.Sorted(maps.Keys(r.entries)) {
		if ns, err := r.entries[inode].ns.Dup(); err == nil { // always: entries are open
			all = append(all, ns)
		}
	}
	return all
}

// ByInode returns a handle of the namespace with this number, which the caller
// closes; false where none is known. See Unknown.
func (r *Registry) ByInode(inode uint32) (*netns.NS, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.entries[inode]
	if e == nil {
		return nil, false
	}
	ns, err := e.ns.Dup()
	return ns, err == nil
}

// Status returns what the last refresh came to.
func (r *Registry) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status
}

// subscriber is one who wants to know.
type subscriber struct{ fn func(*netns.NS, bool) }

// Subscribe calls fn for every namespace known, and from then on for each that
// comes (here is true) or is dropped (false), until cancel. Calls come one after
// the other, during Subscribe and Refresh, and hold them up: fn must not call
// either, nor cancel. The handle is the registry's and open during the call:
// who needs it longer takes a Dup, of a dropped one too, which keeps it alive.
//
// A namespace may be dropped and come again, for example where its last socket
// was on its way from one process to another.
func (r *Registry) Subscribe(fn func(ns *netns.NS, here bool)) (cancel func()) {
	r.refreshing.Lock()
	defer r.refreshing.Unlock()
	s := &subscriber{fn}
	r.subscribers = append(r.subscribers, s)
	known := r.All()
	defer closeAll(known)
	for _, ns := range known {
		fn(ns, true)
	}
	return func() {
		r.refreshing.Lock()
		defer r.refreshing.Unlock()
		r.subscribers = slices.DeleteFunc(r.subscribers, func(have *subscriber) bool { return have == s })
	}
}

// publish tells the subscribers; refreshing is held.
func (r *Registry) publish(list []*netns.NS, here bool) {
	slices.SortFunc(list, func(a, b *netns.NS) int { return cmp.Compare(a.Inode(), b.Inode()) })
	for _, s := range r.subscribers {
		for _, ns := range list {
			s.fn(ns, here)
		}
	}
}

// Close lets go of all namespaces. Handles that were given out stay open, and
// nobody is told.
func (r *Registry) Close() error {
	r.refreshing.Lock()
	defer r.refreshing.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for _, e := range r.entries {
		errs = append(errs, e.ns.Close())
	}
	r.entries = nil
	return errors.Join(errs...)
}

func closeAll(list []*netns.NS) {
	for _, ns := range list {
		_ = ns.Close()
	}
}
