// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
)

// walkBuffer is how much one read of an iterator may return.
const walkBuffer = 64 << 10

// Scan looks at every TCP socket in the network namespace of the calling thread
// except listeners, connection requests and TIME_WAIT, and calls fn for each
// until it returns an error, which Scan returns. It wraps ErrUnsupported before
// Linux 5.11.
func (p *Programs) Scan(fn func(conn.Snapshot) error) error {
	done, ok := p.use()
	if !ok {
		return fmt.Errorf("walk sockets: %w", ErrClosed)
	}
	defer done()
	objects, err := p.scanner()
	if err != nil {
		return err
	}
	return walk(objects.ShScan, lookSize, func(b []byte) error {
		s, err := decodeLook(b)
		if err != nil {
			return err
		}
		return fn(s)
	})
}

// Provoke sets TCP_KEEPIDLE of the sockets with these cookies, in the network
// namespace of the calling thread, to one second: whoever was silent for longer
// sends a keepalive at once, unless data is in flight. Calm puts the value of
// the record back; until then the kernel goes on to probe.
//
// Where no user timeout is set TCP_KEEPCNT goes up with it, and down again when the
// peer is heard, so that keepalives which are lost bring the kernel's own end no nearer.
// A socket that a user timeout would end at the next one is left alone (kernel-facts T18).
//
// The result holds the cookies that were found and set, those of passes beside this one
// among them; the others are gone, left alone, or carry no record. A refusal by the
// kernel is an error after all were tried. It wraps ErrUnsupported before Linux 5.15.
// One pass walks every socket of the namespace, however few are named, and waits where
// an application holds the lock of one. Passes may run side by side, but not about the
// same sockets.
func (p *Programs) Provoke(cookies []uint64) ([]uint64, error) {
	return p.keepidle(cookies, time.Second)
}

// Calm ends what Provoke began, with the same contract.
func (p *Programs) Calm(cookies []uint64) ([]uint64, error) {
	return p.keepidle(cookies, 0)
}

// keepidle runs one pass; 0 stands for the record's value.
func (p *Programs) keepidle(cookies []uint64, idle time.Duration) (done []uint64, err error) {
	free, ok := p.use()
	if !ok {
		return nil, fmt.Errorf("provoke keepalives: %w", ErrClosed)
	}
	defer free()
	objects, err := p.provoker()
	if err != nil || len(cookies) == 0 {
		return nil, err
	}
	// The map of targets is shared by all passes that run: cookies are unique
	// on the host, so that each pass finds its own sockets.
	for _, c := range cookies {
		if err := objects.ShTargets.Put(c, uint32(idle/time.Second)); err != nil {
			err = fmt.Errorf("name socket %d to provoke: %w", c, err)
			return nil, errors.Join(err, clearTargets(objects, cookies))
		}
	}
	var refused []error
	err = walk(objects.ShProvoke, binary.Size(provokeShProvoked{}), func(b []byte) error {
		var out provokeShProvoked
		if _, err := binary.Decode(b, binary.NativeEndian, &out); err != nil {
			return err
		}
		if out.Err != 0 {
			refused = append(refused, fmt.Errorf("set TCP_KEEPIDLE of socket %d: errno %d", out.Cookie, -out.Err))
			return nil
		}
		done = append(done, out.Cookie)
		return nil
	})
	return done, errors.Join(err, errors.Join(refused...), clearTargets(objects, cookies))
}

func clearTargets(objects *provokeObjects, cookies []uint64) error {
	for _, c := range cookies {
		if err := objects.ShTargets.Delete(c); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("clear socket %d to provoke: %w", c, err)
		}
	}
	return nil
}

// onward goes on where the kernel pauses: a read that met a million sockets and
// had a row of none ends with EAGAIN, and the next takes it up from there.
type onward struct{ rows io.Reader }

func (o onward) Read(b []byte) (int, error) {
	for {
		n, err := o.rows.Read(b)
		if n > 0 || !errors.Is(err, unix.EAGAIN) {
			return n, err
		}
	}
}

// walk runs an iterator over the calling thread's namespace and cuts what it
// writes into rows.
func walk(prog *ebpf.Program, size int, row func([]byte) error) error {
	return walkOver(link.IterOptions{Program: prog}, size, row)
}

// walkOver is walk for any iterator.
func walkOver(what link.IterOptions, size int, row func([]byte) error) error {
	it, err := link.AttachIter(what)
	if err != nil {
		return fmt.Errorf("attach walk of sockets: %w", err)
	}
	defer it.Close()
	rows, err := it.Open()
	if err != nil {
		return fmt.Errorf("open walk of sockets: %w", err)
	}
	defer rows.Close()
	buffered := bufio.NewReaderSize(onward{rows}, walkBuffer)
	b := make([]byte, size)
	for {
		if _, err := io.ReadFull(buffered, b); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("walk sockets: %w", err)
		}
		if err := row(b); err != nil {
			return err
		}
	}
}
