// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/netns"
)

// scan is one look over the node.
type scan struct {
	walker Walker // nil: none, or its numbers are of another process id namespace
	proc   string

	have  map[uint32]bool      // open from before
	seen  map[uint32]bool      // in use now
	found map[uint32]*netns.NS // of these, opened by this scan

	denied  map[uint32]netns.Refusal // may not be opened, by way of these
	missing map[uint32]netns.Refusal // had no such holder any more, or its process is hidden
	other   map[uint32]bool          // namespaces of another kind
	hidden  netns.Refusals           // processes and names that may not be looked at
	foreign bool                     // in a process id namespace that is not the first
	walked  time.Duration            // what the walk over files took
}

// firstPIDs is the inode number of the first process id namespace
// (PROC_PID_INIT_INO).
const firstPIDs = 0xEFFFFFFC

func newScan(w Walker, proc string) *scan {
	s := &scan{
		walker: w, proc: proc,
		have: make(map[uint32]bool), seen: make(map[uint32]bool), found: make(map[uint32]*netns.NS),
		denied: make(map[uint32]netns.Refusal), missing: make(map[uint32]netns.Refusal), other: make(map[uint32]bool),
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(proc, "self/ns/pid"), &st); err == nil && st.Ino != firstPIDs {
		s.walker, s.foreign = nil, true // it has the first one's numbers
	}
	return s
}

// sight notes that a namespace is in use; false: it is not open yet.
func (s *scan) sight(inode uint32) bool {
	if s.have[inode] {
		s.seen[inode] = true
	}
	return s.seen[inode]
}

// take keeps what was opened by way of a path, which need not be what was looked for: a
// thread may have gone elsewhere. An inode of 0 is not known.
func (s *scan) take(inode uint32, path string, ns *netns.NS, err error) error {
	switch {
	case err == nil:
		if s.sight(ns.Inode()) {
			return ns.Close()
		}
		if err := mark(ns); err != nil {
			return err
		}
		s.seen[ns.Inode()], s.found[ns.Inode()] = true, ns
	case refused(err):
		if inode == 0 {
			s.hidden.Add(path)
		} else {
			s.denied[inode] = netns.Refused(path)
		}
	case errors.Is(err, netns.ErrNotNetns):
		s.other[inode] = true
	case gone(err):
		s.missing[inode] = netns.Refused(path)
	default:
		return err
	}
	return nil
}

// refused reports whether an error means that something may not be opened.
func refused(err error) bool {
	return errors.Is(err, netns.ErrPermission) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES)
}

// gone reports whether an error means that what was to be opened has ended. A
// thread that is not the first of its process is EINVAL to pidfd_open, ENOENT
// since Linux 6.9.
func gone(err error) bool {
	for _, errno := range []unix.Errno{unix.ENOENT, unix.ESRCH, unix.EBADF, unix.ENXIO, unix.EINVAL, unix.ENOTDIR} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// row is what a walk tells.
type row struct {
	tid, fd int
	inode   uint32
}

// residents sees the namespaces that threads work in.
func (s *scan) residents() error {
	if s.walker == nil {
		return s.processes()
	}
	var rows []row
	err := s.walker.Residents(nil, func(tid int, inode uint32) { rows = append(rows, row{tid: tid, inode: inode}) })
	if err != nil {
		return errors.Join(err, s.processes())
	}
	for _, w := range rows {
		if s.sight(w.inode) {
			continue
		}
		ns, err := s.resident(w.tid)
		if err := s.take(w.inode, s.of(w.tid), ns, err); err != nil {
			return err
		}
	}
	return nil
}

// resident opens the namespace that a thread works in.
func (s *scan) resident(tid int) (*netns.NS, error) {
	ns, err := netns.Open(s.of(tid))
	return ns, s.unlessEnded(tid, err)
}

// unlessEnded returns err, and ESRCH where it is a refusal and the thread has ended:
// proc_ns_get_link and proc_pid_get_link say EACCES then, too.
func (s *scan) unlessEnded(tid int, err error) error {
	if refused(err) && unix.Access(s.thread(tid), unix.F_OK) != nil {
		return unix.ESRCH
	}
	return err
}

// processes is residents by /proc alone, which shows first threads. A stat is
// cheaper than an open, and most processes share a namespace.
func (s *scan) processes() error {
	dir, err := os.Open(s.proc)
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	self := os.Getpid()
	for _, name := range names {
		tid, err := strconv.Atoi(name)
		if err != nil || tid == self { // our main thread may be anywhere
			continue
		}
		var st unix.Stat_t
		if unix.Stat(filepath.Join(s.proc, name, "ns/net"), &st) == nil && s.sight(uint32(st.Ino)) {
			continue
		}
		ns, err := s.resident(tid)
		if err := s.take(0, s.of(tid), ns, err); err != nil {
			return err
		}
	}
	return nil
}

// holders sees the namespaces that open files keep.
func (s *scan) holders() error {
	var rows []row
	began := time.Now()
	err := s.walker.Holders(slices.Collect(maps.Keys(s.seen)), func(tid, fd int, inode uint32) {
		rows = append(rows, row{tid, fd, inode})
	})
	s.walked = time.Since(began)
	if err != nil {
		return err
	}
	for _, w := range rows {
		if s.sight(w.inode) || s.other[w.inode] {
			continue
		}
		ns, err := s.file(w.tid, w.fd, w.inode)
		if err := s.take(w.inode, s.of(w.tid), ns, err); err != nil {
			return err
		}
	}
	return nil
}

// thread is the path of a thread's directory.
func (s *scan) thread(tid int) string { return filepath.Join(s.proc, strconv.Itoa(tid)) }

// of is the path of a thread's namespace.
func (s *scan) of(tid int) string { return filepath.Join(s.thread(tid), "ns/net") }

// denials are what may not be looked at.
func (s *scan) denials() []netns.Refusal {
	list := slices.Clone(s.hidden)
	for _, inode := range slices.Sorted(maps.Keys(s.denied)) {
		if !s.seen[inode] {
			list = append(list, s.denied[inode])
		}
	}
	return list
}

// unseen says what was not seen. Who was missing twice in a row is not a holder
// that happened to end: its process is hidden, or the kernel gives no way to it.
func (s *scan) unseen(before map[uint32]netns.Refusal) error {
	for inode, who := range s.missing {
		if _, again := before[inode]; again && inode != 0 {
			s.denied[inode] = who
		}
	}
	errs := []error{netns.Denied(s.denials())}
	if s.foreign {
		errs = append(errs, ErrForeignPIDs)
	}
	return errors.Join(errs...)
}
