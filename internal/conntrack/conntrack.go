// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/netns"
)

// The errors that Other wraps.
var (
	// ErrNone says that no connection tracking knows the connection: it is not
	// loaded, not used in this namespace, cannot be asked, or has no such entry.
	ErrNone = errors.New("connection is not tracked")
	// ErrHeldUp says that it did not answer in time: somebody flushes or changes
	// entries.
	ErrHeldUp = errors.New("connection tracking is held up")
)

// places bounds the questions of a Tracker at one time, each of which may hold a thread for
// as long as the kernel's mutex is held: it answers one after the other anyway.
const places = 8

// Tracker asks connection tracking, and waits for it no longer than it is told. Use New.
type Tracker struct {
	limit     time.Duration
	enter     func(ns *netns.NS, fn func() error) error // runs fn in a namespace
	exchange  func(question []byte) ([]byte, error)
	places    chan struct{}
	abandoned atomic.Int32 // questions that nobody waits for any more, and that hold a place
}

// New returns a Tracker that waits no longer than limit for an answer, which takes
// microseconds where nobody holds it up. What a busy machine takes to run the thread that
// asks does not count where a place is free: that says nothing of conntrack.
func New(limit time.Duration) *Tracker {
	return &Tracker{limit: limit, enter: (*netns.NS).Do, exchange: exchange, places: make(chan struct{}, places)}
}

// Other returns the address of who is really at the other end of the connection
// with these two addresses, as its socket has them. It is remote itself where
// nothing is translated. It takes one request, in constant time.
//
// Errors wrap ErrNone or ErrHeldUp where it is that; anything else is unexpected.
func (t *Tracker) Other(ns *netns.NS, local, remote netip.AddrPort) (netip.AddrPort, error) {
	other, err := t.ask(ns, local, remote)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("ask for translation of %s -> %s: %w", local, remote, err)
	}
	return other, nil
}

func (t *Tracker) ask(ns *netns.NS, local, remote netip.AddrPort) (netip.AddrPort, error) {
	if !loaded() {
		return netip.AddrPort{}, ErrNone
	}
	question, err := request(local, remote)
	if err != nil {
		return netip.AddrPort{}, err
	}
	answer, err := t.bounded(ns, question)
	if err != nil {
		return netip.AddrPort{}, edge(err)
	}
	e, err := reply(answer)
	if err != nil {
		return netip.AddrPort{}, edge(err)
	}
	return e.other(local, remote), nil
}

// bounded exchanges, on a thread of its own: what waits for a mutex of the kernel's
// cannot be called back. Where as many wait there as may, nobody else waits at all.
func (t *Tracker) bounded(ns *netns.NS, question []byte) (answer []byte, err error) {
	if t.abandoned.Load() == places {
		return nil, ErrHeldUp
	}
	timer, waited := time.NewTimer(t.limit), false
	defer timer.Stop()
	select {
	case t.places <- struct{}{}:
	default:
		waited = true
		select {
		case t.places <- struct{}{}:
		case <-timer.C:
			return nil, ErrHeldUp
		}
	}
	runs, done := make(chan struct{}), make(chan struct{})
	var got []byte
	var failed error
	go func() {
		defer func() { <-t.places }()
		defer close(done)
		failed = t.enter(ns, func() (err error) {
			close(runs)
			got, err = t.exchange(question)
			return err
		})
	}()
	select {
	case <-runs:
	case <-done: // it did not get there
	}
	if !waited { // for those before it, who have shown how long that takes
		timer.Reset(t.limit)
	}
	select {
	case <-done:
		return got, failed
	case <-timer.C:
	}
	select {
	case <-done: // both came while this one waited for a processor
		return got, failed
	default:
	}
	t.abandoned.Add(1)
	go func() {
		<-done
		t.abandoned.Add(-1)
	}()
	return nil, ErrHeldUp
}

// loaded reports whether the kernel has connection tracking now. Asking would
// load it, onto a host that does without.
func loaded() bool {
	_, err := os.Stat("/sys/module/nf_conntrack")
	if !errors.Is(err, fs.ErrNotExist) {
		return true
	}
	_, err = os.Stat("/sys/module")
	return err != nil // there is no sysfs to tell
}

// edge turns an errno that means "none" into ErrNone: no such entry, or no
// handler for such questions.
func edge(err error) error {
	for _, none := range []unix.Errno{unix.ENOENT, unix.EINVAL, unix.EOPNOTSUPP, unix.EPROTONOSUPPORT} {
		if errors.Is(err, none) {
			return fmt.Errorf("%w: %w", ErrNone, err)
		}
	}
	return err
}

// exchange sends one request and returns the answer, in the calling thread's
// namespace. The kernel answers within the send, so that nothing is to be awaited.
func exchange(question []byte) ([]byte, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	if _, err := unix.Write(fd, question); err != nil { // goes to the kernel by default
		return nil, err
	}
	buf := make([]byte, 4096)
	n, err := unix.Read(fd, buf)
	if err != nil {
		return nil, err
	}
	return buf[:n], nil
}
