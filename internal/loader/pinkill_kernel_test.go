// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
)

// TestKilled: an agent is killed at random moments of start and stop, under a
// client that opens connections all the time, half of them by an application that
// sets a keepalive of its own. None is unbounded, each next start succeeds at the
// first try, and in the end nothing is left.
func TestKilled(t *testing.T) {
	b := newPinBed(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	a := b.start(t, loadPinned, loadertest.Fast)
	began := time.Now()
	a.mustStop(t)
	a = b.start(t, loadPinned, loadertest.Fast)
	a.mustStop(t)
	round := time.Since(began) // about two starts and stops

	client := startClient(b)
	for range max(3, labtest.Fewer(30)) {
		p := child(t, "starts", b.dir, b.cgroup.Path)
		select {
		case <-time.After(time.Duration(r.Int64N(int64(round)))):
		case line := <-p.lines:
			// Started: from now on somewhere in its next rounds.
			if line == "started" {
				<-time.After(time.Duration(r.Int64N(int64(round))))
			} else {
				t.Errorf("a start fails: %s", line)
			}
		}
		for _, line := range p.kill() {
			if line != "started" {
				t.Errorf("a start fails: %s", line)
			}
		}
	}
	opened, errs := client.stop()
	t.Logf("%d connections", opened)
	for _, err := range errs {
		t.Error(err)
	}
	if opened < fewest {
		t.Errorf("only %d connections were opened", opened)
	}

	a = b.start(t, loadPinned, loadertest.Fast)
	if d := cmp.Diff(whole, b.pinned(t)); d != "" {
		t.Errorf("pins (-want +got):\n%s", d)
	}
	if c := mustCounters(t, a.Programs, "server"); c.OpenedOutbound != uint64(opened) {
		t.Errorf("%d connections counted, want %d", c.OpenedOutbound, opened)
	}
	wantNoFaults(t, a.Programs)
	f := b.footprint(t)
	a.mustStop(t)
	b.leave(t)
	b.wantNothing(t, f)
}

// fewest is how many connections a client opens at least: an emulated machine is slow.
const fewest = 20

// client opens connections one after the other.
type client struct {
	done   chan struct{}
	work   sync.WaitGroup
	opened int
	errs   []error
}

func startClient(b *pinBed) *client {
	c := &client{done: make(chan struct{})}
	c.work.Go(func() {
		for len(c.errs) < 5 {
			select {
			case <-c.done:
				if c.opened >= fewest {
					return
				}
			default:
			}
			if err := c.open(b); err != nil {
				c.errs = append(c.errs, fmt.Errorf("connection %d: %w", c.opened, err))
			}
			c.opened++
		}
	})
	return c
}

// open opens one and looks at what bounds it.
func (c *client) open(b *pinBed) error {
	d := labtest.Dialer{NS: b.Client, KeepAlive: c.opened%2 == 1}
	near, err := d.Try(labtest.Addr(b.ln.Addr()))
	if err != nil {
		return err
	}
	defer near.Close()
	if err := b.ln.SetDeadline(time.Now().Add(late)); err != nil {
		return err
	}
	far, err := b.ln.AcceptTCP()
	if err != nil {
		return err
	}
	defer far.Close()
	o, err := optionsOf(near)
	if err != nil {
		return err
	}
	if !o.KeepAlive || o.Idle > fast.Idle || o.Interval > fast.Interval || o.UserTimeout != fast.UserTimeout {
		return fmt.Errorf("not bounded: %+v", o)
	}
	return nil
}

// optionsOf is labtest.Options for another goroutine than the test's.
func optionsOf(c *net.TCPConn) (o conn.Options, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return o, err
	}
	get := func(fd uintptr, level, option int) time.Duration {
		v, e := unix.GetsockoptInt(int(fd), level, option)
		err = errors.Join(err, e)
		return time.Duration(v)
	}
	return o, errors.Join(raw.Control(func(fd uintptr) {
		o.KeepAlive = get(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE) != 0
		o.Idle = get(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE) * time.Second
		o.Interval = get(fd, unix.IPPROTO_TCP, unix.TCP_KEEPINTVL) * time.Second
		o.UserTimeout = get(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT) * time.Millisecond
	}), err)
}

// stop ends it.
func (c *client) stop() (opened int, errs []error) {
	close(c.done)
	c.work.Wait()
	return c.opened, c.errs
}

// TestUpgradeKilled: an upgrade that is cut short at a random moment is done by the
// next start, and neither before nor after is a record or a bound lost.
func TestUpgradeKilled(t *testing.T) {
	b := newPinBed(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	var took time.Duration // of the first upgrade, which is not cut short
	for range max(2, labtest.Fewer(8)) {
		old := b.start(t, loader.LoadOlder, loadertest.Fast)
		var live []*net.TCPConn
		for range 20 {
			live = append(live, b.dial(t, true))
		}
		old.mustStop(t)
		client := startClient(b)
		if took > 0 {
			p := child(t, "starts", b.dir, b.cgroup.Path)
			<-time.After(time.Duration(r.Int64N(int64(took))))
			for _, line := range p.kill() {
				if line != "started" {
					t.Errorf("a start fails: %s", line)
				}
			}
		}
		began := time.Now()
		a := b.start(t, loadPinned, loadertest.Fast)
		if took == 0 {
			took = time.Since(began)
		}
		_, errs := client.stop()
		for _, err := range errs {
			t.Error(err)
		}
		loadertest.Need(t, a.Programs, kernel.Scan)
		for i, c := range live {
			if rec, ok := b.record(t, a.Programs, c); !ok || rec.App.Idle != 15*time.Second || rec.Policed != fast {
				t.Errorf("connection %d: record %+v, %v", i, rec, ok)
			}
		}
		if lost := a.Takeover().Lost; lost != nil {
			t.Error(lost)
		}
		if d := cmp.Diff(whole, b.pinned(t)); d != "" {
			t.Errorf("pins (-want +got):\n%s", d)
		}
		a.mustStop(t)
		b.leave(t)
	}
}
