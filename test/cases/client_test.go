// SPDX-License-Identifier: Apache-2.0

package cases

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/netns"
)

// client opens connections one after the other and looks at what bounds each:
// every other is one of an application that sets a keepalive of its own. Some
// stay open.
type client struct {
	ns   *netns.NS
	ln   *net.TCPListener
	done chan struct{}
	work sync.WaitGroup

	reached chan struct{} // closes when fewest connections have been opened
	once    sync.Once

	// Of the goroutine, and the test's after end.
	opened int
	kept   []*net.TCPConn
	ends   []*net.TCPConn // the others' of those
	errs   []error
}

// How many connections stay open, and how often one does.
const (
	keepMost  = 1000
	keepEvery = 10
)

// fewest is how many it opens at least.
const fewest = 100

// newClient starts one, to port 7100 of the server.
func (k *killer) newClient(t *testing.T) *client {
	t.Helper()
	c := &client{ns: k.Client, done: make(chan struct{}), reached: make(chan struct{})}
	c.ln = labtest.Listen(t, k.Server, netip.AddrPortFrom(k.ServerAddr4, 7100))
	c.work.Go(func() {
		defer c.enough()
		for rest := time.Duration(0); len(c.errs) < 5; {
			select {
			case <-c.done:
				return
			case <-time.After(rest):
			}
			began := time.Now()
			err := c.open()
			rest = max(2*time.Millisecond, 5*time.Since(began)) // what else runs is to get on
			if err != nil {
				c.errs = append(c.errs, fmt.Errorf("connection %d, %s: %w", c.opened, time.Now().Format(time.RFC3339Nano), err))
			}
			if c.opened++; c.opened == fewest {
				c.enough()
			}
		}
	})
	t.Cleanup(func() {
		for _, c := range append(c.kept, c.ends...) {
			_ = c.Close()
		}
	})
	return c
}

// enough says that there are as many as are wanted, or will be no more.
func (c *client) enough() { c.once.Do(func() { close(c.reached) }) }

// open opens one and looks at what bounds it.
func (c *client) open() error {
	near, err := labtest.Dialer{NS: c.ns, KeepAlive: c.opened%2 == 1}.Try(labtest.Addr(c.ln.Addr()))
	if err != nil {
		return err
	}
	var far *net.TCPConn
	if err = c.ln.SetDeadline(time.Now().Add(late)); err == nil {
		far, err = c.ln.AcceptTCP()
	}
	if err == nil {
		err = errors.Join(wantEither(near), far.SetLinger(0))
	}
	if err == nil && c.opened%keepEvery < 2 && len(c.kept) < keepMost {
		c.kept, c.ends = append(c.kept, near), append(c.ends, far)
		return nil
	}
	if far != nil {
		_ = far.Close() // by a reset, so that its port is free at once
	}
	_ = near.Close()
	return err
}

// wantEither: it is bounded by one policy or the other, or is on its way from one
// to the other.
func wantEither(c *net.TCPConn) error {
	var o conn.Options
	err := control(c, func(fd int) (err error) {
		o, err = optionsOf(fd)
		return err
	})
	if err != nil {
		return err
	}
	p, q := killGives[0], killGives[1]
	if !o.KeepAlive || o.Idle != p.Idle && o.Idle != q.Idle || o.Interval != p.Interval && o.Interval != q.Interval ||
		o.UserTimeout != p.UserTimeout && o.UserTimeout != q.UserTimeout {
		return fmt.Errorf("not bounded: %+v", o)
	}
	return nil
}

// end ends it, and demands that no connection was unbounded.
func (c *client) end(t *testing.T) {
	t.Helper()
	select {
	case <-c.reached:
	case <-time.After(time.Minute):
	}
	close(c.done)
	c.work.Wait()
	for _, err := range c.errs {
		t.Error(err)
	}
	if c.opened < fewest {
		t.Errorf("only %d connections were opened", c.opened)
	}
}
