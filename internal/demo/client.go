// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Client is the main function of a process that plays the client of the incident
// that the first argument names, until ctx ends or the demo does.
func Client(ctx context.Context, args []string) error {
	switch role, args := roleOf(args); role {
	case poolName:
		return pooler(ctx, args)
	case callName:
		return callerMain(ctx, args)
	default:
		return fmt.Errorf("play client: no incident %q", role)
	}
}

// pooler opens a pool of connections, says so, reads from standard input when to
// send the first request (nanoseconds on CLOCK_MONOTONIC), and works one request
// after the other.
func pooler(ctx context.Context, args []string) error {
	c, err := newClient(args)
	if err != nil {
		return err
	}
	return c.run(ctx, os.Stdin, os.Stdout)
}

// client works one request after the other.
type client struct {
	http *http.Client
	url  string
	now  func() time.Duration // CLOCK_MONOTONIC
	late lateness
}

func (c *client) run(ctx context.Context, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go c.late.run(ctx, c.now)
	pool, err := c.open(ctx, poolConns)
	if err != nil {
		return fmt.Errorf("open pool: %w", err)
	}
	if err := emit(out, event{Kind: eventReady, At: c.now(), Pool: pool}); err != nil {
		return err
	}
	order, err := bufio.NewReader(in).ReadString('\n')
	if err != nil {
		return fmt.Errorf("wait for the moment of the first request: %w", err)
	}
	first, err := strconv.ParseInt(strings.TrimSpace(order), 10, 64)
	if err != nil {
		return fmt.Errorf("read the moment of the first request: %w", err)
	}
	for wait := time.Duration(first) - c.now(); sleep(ctx, wait); wait = poolPause {
		if err := emit(out, event{Kind: eventSent, At: c.now()}); err != nil {
			return err
		}
		done := c.send(ctx, strings.NewReader("work"), nil)
		if err := emit(out, done); err != nil {
			return err
		}
	}
	return nil
}

// send sends one request and returns its outcome. It is a POST: net/http would
// quietly repeat a GET that was sent on a connection that is dead. got, if any,
// is called with the connection.
func (c *client) send(ctx context.Context, body io.Reader, got func(httptrace.GotConnInfo)) event {
	done := event{Kind: eventDone}
	var mu sync.Mutex // guards local: a hook may come from another goroutine
	var local string
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		mu.Lock()
		local = info.Conn.LocalAddr().String()
		mu.Unlock()
		if got != nil {
			got(info)
		}
	}})
	var err error
	done.Server, err = c.exchange(ctx, body)
	done.At, done.Late = c.now(), c.late.max()
	if err != nil {
		done.Err = err.Error()
	}
	mu.Lock()
	done.Local = local
	mu.Unlock()
	return done
}

// exchange returns the body of the answer.
func (c *client) exchange(ctx context.Context, body io.Reader) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, body)
	if err != nil {
		return "", err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		var wrapped *url.Error
		if errors.As(err, &wrapped) {
			err = wrapped.Err // the rest says which request it was
		}
		return "", err
	}
	answer, err := io.ReadAll(resp.Body)
	if closeErr := resp.Body.Close(); err == nil {
		err = closeErr
	}
	return string(answer), err
}

// open opens n connections by n requests at the same time, none of which ends
// before all have their connection, and returns the local addresses.
func (c *client) open(ctx context.Context, n int) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	var missing atomic.Int64
	missing.Store(int64(n))
	all := make(chan struct{})
	got := func(httptrace.GotConnInfo) {
		if missing.Add(-1) == 0 {
			close(all)
		}
	}
	outcomes := make(chan event, n)
	for range n {
		body := &held{ctx: ctx, until: all, Reader: strings.NewReader("hello")}
		go func() { outcomes <- c.send(ctx, body, got) }()
	}
	var pool []string
	var errs []error
	for range n {
		o := <-outcomes
		pool = append(pool, o.Local)
		if o.Err != "" {
			errs = append(errs, errors.New(o.Err))
		}
	}
	return pool, errors.Join(errs...)
}

// held is a body that comes only once something has happened.
type held struct {
	ctx   context.Context
	until <-chan struct{}
	io.Reader
}

// Read waits.
func (h *held) Read(p []byte) (int, error) {
	select {
	case <-h.until:
		return h.Reader.Read(p)
	case <-h.ctx.Done():
		return 0, context.Cause(h.ctx)
	}
}

// sleep reports whether the time passed before ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
