// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/netns"
)

// Condemned is one socket to close.
type Condemned struct {
	conn.ID
	// Until is when, on CLOCK_MONOTONIC, it is not to be closed any more: a walk
	// can be held up for as long as an application likes, and what condemned the
	// socket is out of date then.
	Until time.Duration
}

// Destroy closes exactly the sockets that are named, by tuple, family, device,
// cookie and namespace, which is the calling thread's: each application reads
// ECONNABORTED, a reachable peer gets RST. Cookies must differ.
//
// It returns one result for each, in their order; nil means that the kernel has
// done it. It wraps ErrNotFound where there is no such socket in that namespace,
// or it is not one to destroy: a listener, a request, in TIME_WAIT, opening or
// closing, or without a process that has it open. Walks of kernels before the
// middle of 2025 can pass a socket by: who needs to know looks whether it is
// there. It wraps ErrLate where the walk came to the socket too late, and
// ErrUnsupported before Linux 6.5.
//
// One pass walks every socket of the namespace, however few are named, and
// waits where an application holds the lock of one. Passes over different
// namespaces may run side by side. Two over the same one must not: each would
// close what the other names, which then looks gone to it.
func (p *Programs) Destroy(ids []Condemned) []error {
	done, ok := p.use()
	if !ok {
		return each(ids, fmt.Errorf("close sockets: %w", ErrClosed))
	}
	defer done()
	objects, err := p.destroyer()
	if err != nil {
		return each(ids, err)
	}
	here, err := netns.Current()
	if err != nil {
		return each(ids, fmt.Errorf("close sockets: %w", err))
	}
	defer here.Close()
	errs := make([]error, len(ids))
	var named []int
	for i, id := range ids {
		if errs[i] = condemn(objects.ShTargets, id, here.Inode()); errs[i] == nil {
			named = append(named, i)
		}
	}
	if len(named) == 0 {
		return errs
	}
	err = walk(objects.ShDestroy, 1, func([]byte) error { return nil })
	for _, i := range named {
		errs[i] = outcome(objects.ShTargets, ids[i].ID, err)
	}
	return errs
}

// each is the same error for every id.
func each(ids []Condemned, err error) []error {
	errs := make([]error, len(ids))
	for i, id := range ids {
		errs[i] = fmt.Errorf("close %s: %w", id.ID, err)
	}
	return errs
}

// condemn names one socket to the program.
func condemn(targets *ebpf.Map, want Condemned, here uint32) error {
	id := want.ID
	switch {
	case id.Cookie == 0 || id.Netns == 0 || !id.Local.IsValid() || !id.Remote.IsValid():
		return fmt.Errorf("close %s: not a complete socket id", id)
	case id.Netns != here:
		return fmt.Errorf("close %s: %w in netns %d", id, ErrNotFound, here)
	}
	c := destroyShCondemned{Ifindex: id.Ifindex, Family: uint16(id.Family), UntilNs: uint64(want.Until)}
	c.Tuple.Local, c.Tuple.Remote = id.Local.Addr().As16(), id.Remote.Addr().As16()
	c.Tuple.LocalPort, c.Tuple.RemotePort = id.Local.Port(), id.Remote.Port()
	if err := targets.Update(id.Cookie, &c, ebpf.UpdateNoExist); err != nil {
		return fmt.Errorf("close %s: name it to the program: %w", id, err)
	}
	return nil
}

// outcome takes back what condemn named and says what came of it; walked is the
// error of the walk, which does not matter to a socket that it has met.
func outcome(targets *ebpf.Map, id conn.ID, walked error) error {
	var c destroyShCondemned
	if err := targets.LookupAndDelete(id.Cookie, &c); err != nil {
		return errors.Join(fmt.Errorf("close %s: read what came of it: %w", id, err), walked)
	}
	switch destroyShOutcome(c.Outcome) {
	case destroyShOutcomeSH_DESTROYED:
		return destroyResult(id, c.Err)
	case destroyShOutcomeSH_OTHER:
		return fmt.Errorf("close %s: its cookie is connected elsewhere: %w", id, ErrNotFound)
	case destroyShOutcomeSH_LATE:
		return fmt.Errorf("close %s: %w", id, ErrLate)
	case destroyShOutcomeSH_REFUSED:
		return fmt.Errorf("close %s: not one to destroy: %w", id, ErrNotFound)
	}
	if walked != nil {
		return fmt.Errorf("close %s: %w", id, walked)
	}
	return fmt.Errorf("close %s: %w", id, ErrNotFound)
}

// destroyResult translates the answer of bpf_sock_destroy: 0 or a negative
// errno. Since Linux 6.11 a socket that is closed already is ENOENT.
func destroyResult(id conn.ID, result int32) error {
	switch errno := unix.Errno(-result); {
	case result == 0:
		return nil
	case errno == unix.ENOENT:
		return fmt.Errorf("close %s: %w: %w", id, ErrNotFound, errno)
	default:
		return fmt.Errorf("close %s: %w", id, errno)
	}
}
