// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"errors"
	"fmt"
	"time"

	"github.com/sockhealth/sockhealth/internal/netns"
)

const (
	// full is how often Watch walks over all open files where nothing else asks
	// for it: so late may a namespace be found in which no thread works, that no
	// name stands for and that no event named.
	full = 5 * time.Minute
	// share is how much longer than such a walk lasts Watch waits until the next
	// that nobody asked for, where it needs one to tell whether a namespace is
	// in use: it takes no more than 0.1 % of a core, also on a node with
	// millions of open files.
	share = 1000
	// patience is how many refreshes in a row may be unable to tell whether a
	// namespace is in use before it is dropped: a mistake in that direction is
	// mended by the next that can, while one in the other keeps it alive.
	patience = 3
)

// Refresh finds the namespaces of the node now: it opens those that are new,
// drops those that nobody uses any more, and tells the subscribers.
//
// Errors say what could not be seen; all the rest is as it should be. They wrap
// netns.ErrPermission where something may not be looked at, ErrForeignPIDs, and
// what the Walker says. Where a part of the search fails, a namespace that was
// not seen stays for two refreshes more.
//
// It grows with the number of threads (0.6 us each) and, most of it, of open files
// (0.26 us each): measured 6.7 ms with 500 processes that have 20,000 files open,
// 10 ms where both cores had other work (BenchmarkRefresh, on a virtual machine).
// More than 80 % of it are the files, which Watch mostly leaves out.
func (r *Registry) Refresh() error { return r.refresh(true) }

// refresh walks over files where asked is true, or it is time to.
func (r *Registry) refresh(asked bool) error {
	r.refreshing.Lock()
	defer r.refreshing.Unlock()
	began := time.Now()
	s, err := r.begin()
	if err != nil {
		return err
	}
	err = errors.Join(s.residents(), s.names())
	all := s.walker == nil
	if s.walker != nil && (asked || r.walkFiles(s, began)) {
		all = true
		err = errors.Join(err, s.holders())
		r.walked, r.pace = began, share*s.walked
	}
	certain, doubtful := all && err == nil, err != nil
	if !all {
		for inode, who := range r.denied {
			if _, now := s.denied[inode]; !now {
				s.denied[inode] = who
			}
		}
	}
	err = errors.Join(err, s.unseen(r.missing))
	if all {
		r.missing, r.denied = s.missing, s.denied
	}
	if err != nil {
		err = fmt.Errorf("find network namespaces: %w", err)
	}
	gone, come := r.apply(s, certain, doubtful)
	r.publish(gone, false)
	r.publish(come, true)
	closeAll(gone)
	r.finish(s, began, err)
	return err
}

// walkFiles reports whether a refresh that nobody asked for is to walk over all
// open files.
func (r *Registry) walkFiles(s *scan, now time.Time) bool {
	since := now.Sub(r.walked)
	return since >= r.pace && (since >= full || len(s.seen) < len(s.have)+len(s.found))
}

// begin prepares a scan that knows what is open already.
func (r *Registry) begin() (*scan, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.entries == nil {
		return nil, fmt.Errorf("find network namespaces: %w", ErrClosed)
	}
	s := newScan(r.walker, r.proc)
	for inode := range r.entries {
		s.have[inode] = true
	}
	s.sight(r.home)
	return s, nil
}

// apply takes over what a scan found. certain: what it has not seen is not in
// use. doubtful: it ought to know and does not.
func (r *Registry) apply(s *scan, certain, doubtful bool) (gone, come []*netns.NS) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for inode, e := range r.entries {
		if doubtful {
			e.unsure++
		}
		switch {
		case s.seen[inode]:
			e.unsure = 0
		case certain, e.unsure >= patience:
			delete(r.entries, inode)
			gone = append(gone, e.ns)
		}
	}
	for inode, ns := range s.found {
		r.entries[inode] = &entry{ns: ns}
		come = append(come, ns)
	}
	return gone, come
}

// finish keeps what the refresh came to.
func (r *Registry) finish(s *scan, began time.Time, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	took := now.Sub(began)
	r.pause = max(leastPause, pauseShare*took)
	for inode, until := range r.asked {
		if r.entries[inode] != nil || now.After(until) {
			delete(r.asked, inode)
		}
	}
	r.status = Status{
		Ended: now, Took: took, Namespaces: len(r.entries), Denied: len(s.denials()), Unknown: len(r.asked), Err: err,
	}
}
