// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/report"
	"golang.org/x/sync/errgroup"
)

// caller is the client of the call incident: an application that holds a channel
// to each of its peers, reports the calls that time out, and waits on for their
// answers.
type caller struct {
	dial     func(ctx context.Context, addr string) (net.Conn, error)
	reporter report.Reporter
	timeout  time.Duration        // of a call
	now      func() time.Duration // CLOCK_MONOTONIC
	late     lateness

	outMu sync.Mutex // guards out
	out   io.Writer

	mu       sync.Mutex // guards channels
	channels map[channelKey]*channel
}

// channelKey names a channel.
type channelKey struct {
	n    int // of the case
	name string
}

// callerMain is the main function of that client's process.
func callerMain(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet(ClientCommand+" "+callName, flag.ContinueOnError)
	socket := flags.String("report", "", "the agent's socket for reports")
	timeout := flags.Duration("timeout", callTimeout, "when to report a call")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var d net.Dialer
	c := &caller{
		dial:     func(ctx context.Context, addr string) (net.Conn, error) { return d.DialContext(ctx, "tcp", addr) },
		reporter: &report.Client{Socket: *socket},
		timeout:  *timeout, now: conn.Now, out: os.Stdout,
	}
	return c.run(ctx, os.Stdin)
}

// run does what it reads until the input or ctx ends. The first order that
// cannot be carried out ends it.
func (c *caller) run(ctx context.Context, in io.Reader) error {
	orders, ctx := errgroup.WithContext(ctx)
	late, stop := context.WithCancel(ctx)
	defer stop()
	go c.late.run(late, c.now)
	defer c.hangUp()
	orders.Go(func() error {
		for in := json.NewDecoder(in); ; {
			var o order
			err := in.Decode(&o)
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return fmt.Errorf("read order: %w", err)
			}
			orders.Go(func() error { return c.obey(ctx, o) })
		}
	})
	ended := make(chan error, 1)
	go func() { ended <- orders.Wait() }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done(): // the input may never end
		if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
			return err
		}
		return nil
	}
}

// hangUp closes all channels.
func (c *caller) hangUp() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, ch := range c.channels {
		ch.close()
	}
}

func (c *caller) obey(ctx context.Context, o order) error {
	if !sleep(ctx, o.At-c.now()) {
		return nil
	}
	switch o.Do {
	case orderOpen:
		return c.open(ctx, o)
	case orderCall:
		return c.call(ctx, o)
	case orderReport:
		return c.report(ctx, o, report.Request{Peer: o.Peer, ElapsedMS: c.timeout.Milliseconds()})
	}
	return fmt.Errorf("obey order: %q is none", o.Do)
}

// open opens a channel and sees it work.
func (c *caller) open(ctx context.Context, o order) error {
	conn, err := c.dial(ctx, o.Peer)
	if err != nil {
		return fmt.Errorf("open channel: %w", err)
	}
	ch := newChannel(conn)
	c.mu.Lock()
	if c.channels == nil {
		c.channels = make(map[channelKey]*channel)
	}
	c.channels[channelKey{o.Case, o.Name}] = ch
	c.mu.Unlock()
	select {
	case a := <-ch.send(callRequest{}):
		if a.Err != "" {
			return fmt.Errorf("open channel to %s: %s", o.Peer, a.Err)
		}
		return c.emit(callEvent{Kind: eventOpened, Case: o.Case, Name: o.Name, Local: ch.local()})
	case <-ctx.Done():
		return nil
	}
}

// call makes one call.
func (c *caller) call(ctx context.Context, o order) error {
	c.mu.Lock()
	ch := c.channels[channelKey{o.Case, o.Channel}]
	c.mu.Unlock()
	if ch == nil {
		return fmt.Errorf("call: no channel %q of case %d", o.Channel, o.Case)
	}
	sent := c.now()
	done := callEvent{Kind: eventDone, Case: o.Case, Name: o.Name, Local: ch.local()}
	if err := c.emit(callEvent{Kind: eventSent, Case: o.Case, Name: o.Name, At: sent, Local: done.Local}); err != nil {
		return err
	}
	answer := ch.send(callRequest{Work: o.Work, Fail: o.Fail})
	timeout := time.NewTimer(c.timeout)
	defer timeout.Stop()
	var reports errgroup.Group
	for {
		select {
		case a := <-answer:
			done.Err, done.Server = a.Err, a.Server
			return errors.Join(c.emit(done), reports.Wait())
		case <-timeout.C:
			r := report.Request{Local: done.Local, Peer: ch.peer(), ElapsedMS: (c.now() - sent).Milliseconds()}
			reports.Go(func() error { return c.report(ctx, o, r) })
		case <-ctx.Done():
			return reports.Wait()
		}
	}
}

// report tells the agent. What comes of it is the demo's to judge.
func (c *caller) report(ctx context.Context, o order, r report.Request) error {
	e := callEvent{Kind: eventReporting, Case: o.Case, Name: o.Name, At: c.now()}
	if err := c.emit(e); err != nil {
		return err
	}
	resp, err := c.reporter.Report(ctx, r)
	if ctx.Err() != nil {
		return nil
	}
	e = callEvent{Kind: eventReported, Case: o.Case, Name: o.Name}
	if err != nil {
		e.Err = err.Error()
	} else {
		e.Results = resp.Results
	}
	return c.emit(e)
}

// emit writes an event, of now where it has no other moment.
func (c *caller) emit(e callEvent) error {
	c.outMu.Lock()
	defer c.outMu.Unlock()
	if e.At == 0 {
		e.At = c.now()
	}
	e.Late = c.late.max()
	return emit(c.out, e)
}
