// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"net/http"
	"time"
)

// Defaults of Transport.
const (
	DefaultKeepFor    = 15 * time.Second
	DefaultMaxPending = 128
)

// Reporter sends one report. *Client is one.
type Reporter interface {
	Report(context.Context, Request) (*Response, error)
}

// Transport is an http.RoundTripper that reports a request that got no answer
// in time. Set its fields before the first use; it must not be copied after.
//
// A request is bounded by CallTimeout, by its context's deadline and by
// http.Client's Timeout, whichever comes first. A request that has none of them
// goes straight to Base.
//
// When that bound strikes before the response's header has come, RoundTrip
// returns at once an error whose Timeout method returns true and that wraps
// context.DeadlineExceeded. http.Transport closes a connection the moment that
// its request's context ends, and with it the evidence; so the request itself
// is kept in the background, the connection is reported, and the verdict says
// what becomes of the request:
//
//   - The connection lives (alive, local_unread, alive_slow or alive_hung, and
//     nothing was done to it): the request goes on until its answer has come,
//     for KeepFor since it ran out of time at most. The answer is read to its
//     end and dropped, so that the connection goes back to the pool: a slow
//     answer costs no connection. One of more than 256 KiB costs it.
//   - Every other verdict, and a report that was not heard: the request is
//     cancelled. Over HTTP/1 this closes its connection if the agent has not,
//     over HTTP/2 it resets the one stream.
//
// An answer that comes before the verdict is read to its end in the same way.
//
// What that costs: until its answer has come, or KeepFor has passed, the
// connection of such a request is busy and counts for MaxConnsPerHost of an
// http.Transport, a stream of HTTP/2 is in use, a body that is still being sent
// is sent on, and the server works on an answer that nobody reads. The caller's
// next request takes another connection.
//
// No report is sent where the request had no TCP connection yet (the dial or
// the wait for one took too long), where the caller cancels instead of running
// out of time, nor where the bound strikes while the response's body is read:
// these cancel the request at once, as Base would. As with every
// http.RoundTripper, the request's body may be read until it is closed, which
// can be after RoundTrip has returned.
//
// On other systems than Linux the bounds hold and nothing is reported.
type Transport struct {
	// Base sends the requests; nil means http.DefaultTransport.
	Base http.RoundTripper
	// Reporter sends the reports; nil means a zero Client.
	Reporter Reporter
	// CallTimeout bounds the time from RoundTrip to the response's header.
	// It does not bound the reading of the body. 0 means no such bound.
	CallTimeout time.Duration
	// KeepFor bounds how long a request that ran out of time is kept for
	// its verdict and its late answer, both in all; 0 means DefaultKeepFor.
	KeepFor time.Duration
	// MaxPending bounds how many such requests there are at one time. One
	// more takes the place of the oldest whose verdict is in, which is then
	// cancelled; where there is none it is itself cancelled without a report.
	// 0 means DefaultMaxPending.
	MaxPending int
	// OnResult, where set, is told of every report as soon as its verdict is
	// in: the answer or the error. It is called in the background, by several
	// goroutines at once.
	OnResult func(Request, *Response, error)

	pending pending
}

// RoundTrip sends one request; see Transport.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	bound, ok := t.bound(req.Context())
	if !ok {
		return t.base().RoundTrip(req)
	}
	if err := context.Cause(req.Context()); err != nil {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, err
	}
	return t.start(req).wait(bound)
}

// CloseIdleConnections closes those of Base, where it can; http.Client's method
// of that name calls it.
func (t *Transport) CloseIdleConnections() {
	if base, ok := t.base().(interface{ CloseIdleConnections() }); ok {
		base.CloseIdleConnections()
	}
}

// Wait returns when no timed-out request is pending any more.
func (t *Transport) Wait() { t.pending.wait() }

// Close cancels the pending requests and reports, waits for them, and turns
// further reports off: a request that runs out of time is cancelled then. The
// connections of Base are not touched. It returns nil.
func (t *Transport) Close() error {
	t.pending.close()
	t.pending.wait()
	return nil
}

// bound returns when the request's time is up.
func (t *Transport) bound(ctx context.Context) (time.Time, bool) {
	at, ok := ctx.Deadline()
	if t.CallTimeout > 0 {
		if own := time.Now().Add(t.CallTimeout); !ok || own.Before(at) {
			return own, true
		}
	}
	return at, ok
}

func (t *Transport) base() http.RoundTripper {
	if t.Base != nil {
		return t.Base
	}
	return http.DefaultTransport
}

func (t *Transport) reporter() Reporter {
	if t.Reporter != nil {
		return t.Reporter
	}
	return &Client{}
}

func (t *Transport) keepFor() time.Duration {
	if t.KeepFor > 0 {
		return t.KeepFor
	}
	return DefaultKeepFor
}

func (t *Transport) maxPending() int {
	if t.MaxPending > 0 {
		return t.MaxPending
	}
	return DefaultMaxPending
}
