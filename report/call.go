// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"
)

// maxDrain bounds what is read of a late answer to give its connection back.
const maxDrain = 256 << 10

// timeoutError is a request's time running out before the response's header.
type timeoutError struct{ after time.Duration }

func (e *timeoutError) Error() string {
	return fmt.Sprintf("no response header within %s", e.after.Round(time.Millisecond))
}

// Timeout makes it a timeout to net.Error and http.Client.
func (*timeoutError) Timeout() bool   { return true }
func (*timeoutError) Temporary() bool { return true }
func (*timeoutError) Unwrap() error   { return context.DeadlineExceeded }

// answer is what Base returned.
type answer struct {
	resp *http.Response
	err  error
}

// call is one request on its way. Base runs in a goroutine of its own, which
// hands over its answer, or drains it once the call is kept, or drops it once
// ctx has ended.
type call struct {
	t       *Transport
	req     *http.Request // the caller's
	started time.Time
	trace   trace
	ctx     context.Context // the inner request's, detached from the caller's
	cancel  context.CancelCauseFunc
	answers chan answer   // unbuffered
	kept    chan struct{} // closed: nobody takes the answer any more
	late    atomic.Bool   // an answer came after that
	ended   chan struct{} // closed when the goroutine is through
}

// start sends the request.
func (t *Transport) start(req *http.Request) *call {
	c := &call{
		t: t, req: req, started: time.Now(),
		answers: make(chan answer), kept: make(chan struct{}), ended: make(chan struct{}),
	}
	c.ctx, c.cancel = context.WithCancelCause(context.WithoutCancel(req.Context()))
	inner := req.Clone(httptrace.WithClientTrace(c.ctx, c.trace.hooks()))
	inner.Cancel = nil // http.Client's Timeout uses it; wait does what it asks
	go c.run(inner)
	return c
}

// run is the goroutine of the inner request.
func (c *call) run(inner *http.Request) {
	defer close(c.ended)
	resp, err := c.t.base().RoundTrip(inner)
	select {
	case c.answers <- answer{resp, err}:
		return
	case <-c.kept:
		if resp != nil {
			c.late.Store(true)
			_, _ = io.CopyN(io.Discard, resp.Body, maxDrain)
		}
	case <-c.ctx.Done():
	}
	if resp != nil {
		_ = resp.Body.Close()
	}
}

// wait returns the answer, or an error as soon as the caller's time is up.
func (c *call) wait(bound time.Time) (*http.Response, error) {
	timer := time.NewTimer(time.Until(bound))
	defer timer.Stop()
	ctx := c.req.Context()
	select {
	case a := <-c.answers:
		return c.hand(a)
	case <-timer.C:
	case <-ctx.Done():
	case <-c.req.Cancel:
	}
	// Time or patience? At its Timeout http.Client closes Cancel.
	if time.Now().Before(bound) && !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		cause := context.Cause(ctx)
		if cause == nil {
			cause = context.Canceled
		}
		c.cancel(cause)
		return nil, cause
	}
	err := &timeoutError{after: time.Since(c.started)}
	if !c.keep() {
		c.cancel(err)
	}
	return nil, err
}

// hand gives the answer to the caller, whose context governs the body.
func (c *call) hand(a answer) (*http.Response, error) {
	if a.err != nil {
		c.cancel(a.err)
		return nil, a.err
	}
	a.resp.Request = c.req
	a.resp.Body = c.follow(a.resp)
	return a.resp, nil
}

// keep sees to a request that ran out of time, and reports whether it does.
func (c *call) keep() bool {
	if !supported {
		return false
	}
	r, ok := c.trace.request(time.Now())
	if !ok {
		return false
	}
	p, ok := c.t.pending.enter(c.t.maxPending())
	if !ok {
		return false
	}
	close(c.kept)
	go func() {
		defer p.leave()
		c.judge(p, r)
	}()
	return true
}

// judge reports the connection and returns when the inner request has ended. A
// late answer ends the request but not the question: there are the siblings.
func (c *call) judge(p *place, r Request) {
	ctx, stop := context.WithTimeout(p.ctx, c.t.keepFor())
	defer stop()
	defer context.AfterFunc(ctx, func() { c.cancel(context.Cause(ctx)) })()
	resp, err := c.t.reporter().Report(ctx, r)
	if c.t.OnResult != nil {
		c.t.OnResult(r, resp, err)
	}
	// Where the peer lives, or answers already, the connection is worth more
	// than the wait: to end the request would close it.
	if c.late.Load() || err == nil && lives(resp) {
		p.lend()
		select {
		case <-c.ended:
		case <-ctx.Done():
		}
	}
	c.cancel(context.DeadlineExceeded)
	<-c.ended
}

// lives reports whether a verdict says that the peer was heard from on the
// connection, and the agent has kept it. Of all others the request is ended as
// Base would have ended it.
func lives(resp *Response) bool {
	if resp == nil || len(resp.Results) == 0 {
		return false
	}
	for _, r := range resp.Results {
		switch r.Verdict {
		case "alive", "local_unread", "alive_slow", "alive_hung":
			if r.Action != "none" {
				return false
			}
		default:
			return false
		}
	}
	return true
}
