// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// roundTrip is a base made of a function.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// dead is a base whose peer never answers: the connection is there after
// connect, the request written after write.
func dead(connect, write time.Duration, ended *time.Time) roundTrip {
	return func(r *http.Request) (*http.Response, error) {
		defer func() { *ended = time.Now() }()
		trace := httptrace.ContextClientTrace(r.Context())
		select {
		case <-time.After(connect):
		case <-r.Context().Done():
			return nil, context.Cause(r.Context())
		}
		trace.GotConn(httptrace.GotConnInfo{Conn: fakeConn{local: tcp("10.1.1.1", 1, ""), remote: tcp("10.1.1.2", 2, "")}})
		time.Sleep(write)
		trace.WroteRequest(httptrace.WroteRequestInfo{})
		select {
		case <-r.Context().Done():
		case <-r.Cancel: // which http.Transport heeds, too
		}
		return nil, context.Cause(r.Context())
	}
}

// never is an agent that never answers.
type never struct {
	asked []Request
	ended time.Time
}

func (n *never) Report(ctx context.Context, r Request) (*Response, error) {
	n.asked = append(n.asked, r)
	<-ctx.Done()
	n.ended = time.Now()
	return nil, ctx.Err()
}

func TestCallTimes(t *testing.T) {
	want := func(ms int64) []Request {
		return []Request{{Local: "10.1.1.1:1", Peer: "10.1.1.2:2", ElapsedMS: ms}}
	}
	for _, tc := range []struct {
		name           string
		connect, write time.Duration
		keep           time.Duration
		reports        []Request
		ended          time.Duration // of the inner request
	}{
		{"age counts from the write", 100 * time.Millisecond, 400 * time.Millisecond, 0, want(1500), 17 * time.Second},
		{"kept as long as told", 0, 0, 4 * time.Second, want(2000), 6 * time.Second},
		{"being written: from the connection on", time.Second, 5 * time.Second, 0, want(1000), 17 * time.Second},
		{"no connection: no report", 3 * time.Second, 0, 0, nil, 2 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var ended time.Time
				agent := &never{}
				tr := &Transport{
					Base: dead(tc.connect, tc.write, &ended), Reporter: agent,
					CallTimeout: 2 * time.Second, KeepFor: tc.keep,
				}
				req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://peer/", nil)
				begin := time.Now()
				_, err := tr.RoundTrip(req)
				if took := time.Since(begin); took != 2*time.Second {
					t.Errorf("returned after %s, want 2s", took)
				}
				wantTimeout(t, err)
				if want := "no response header within 2s"; err.Error() != want {
					t.Errorf("error %q, want %q", err, want)
				}
				tr.Wait()
				synctest.Wait()
				if d := cmp.Diff(tc.reports, agent.asked); d != "" {
					t.Errorf("reports (-want +got):\n%s", d)
				}
				if got := ended.Sub(begin); got != tc.ended {
					t.Errorf("inner request ended after %s, want %s", got, tc.ended)
				}
				if tc.reports != nil && !agent.ended.Equal(ended) {
					t.Errorf("report ended at %s, request at %s", agent.ended, ended)
				}
			})
		})
	}
}

// However a call is bounded, it returns in time and is kept all the same.
func TestCallBounds(t *testing.T) {
	for name, do := range map[string]func(*testing.T, *Transport, *http.Request) error{
		"CallTimeout": func(t *testing.T, tr *Transport, req *http.Request) error {
			tr.CallTimeout = 2 * time.Second
			_, err := tr.RoundTrip(req)
			return err
		},
		"CallTimeout before the context": func(t *testing.T, tr *Transport, req *http.Request) error {
			tr.CallTimeout = 2 * time.Second
			ctx, cancel := context.WithTimeout(req.Context(), time.Hour)
			defer cancel()
			_, err := tr.RoundTrip(req.WithContext(ctx))
			return err
		},
		"context before CallTimeout": func(t *testing.T, tr *Transport, req *http.Request) error {
			tr.CallTimeout = time.Hour
			ctx, cancel := context.WithTimeout(req.Context(), 2*time.Second)
			defer cancel()
			_, err := tr.RoundTrip(req.WithContext(ctx))
			return err
		},
		"http.Client": func(t *testing.T, tr *Transport, req *http.Request) error {
			_, err := (&http.Client{Transport: tr, Timeout: 2 * time.Second}).Do(req)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var ended time.Time
				agent := &never{}
				tr := &Transport{Base: dead(0, 0, &ended), Reporter: agent}
				req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://peer/", nil)
				begin := time.Now()
				wantTimeout(t, do(t, tr, req))
				if took := time.Since(begin); took != 2*time.Second {
					t.Errorf("returned after %s, want 2s", took)
				}
				tr.Wait()
				if got := ended.Sub(begin); got != 17*time.Second || len(agent.asked) != 1 {
					t.Errorf("ended after %s with %d reports, want 17s and 1", got, len(agent.asked))
				}
			})
		})
	}
}

// stubborn is an agent that takes its time, whatever the context says.
type stubborn time.Duration

func (s stubborn) Report(context.Context, Request) (*Response, error) {
	time.Sleep(time.Duration(s))
	return &Response{}, nil
}

// trickle is the body of a late answer that takes its time.
type trickle struct {
	ctx    context.Context
	left   time.Duration
	whole  bool
	closed time.Time
}

func (b *trickle) Read([]byte) (int, error) {
	select {
	case <-time.After(b.left):
		b.whole = true
		return 0, io.EOF
	case <-b.ctx.Done():
		return 0, context.Cause(b.ctx)
	}
}

func (b *trickle) Close() error {
	b.closed = time.Now()
	return nil
}

// A late answer that has begun is read to its end, the verdict notwithstanding,
// but only as long as requests are kept.
func TestLateAnswerIsDrained(t *testing.T) {
	for _, tc := range []struct {
		name         string
		header, body time.Duration // when it comes, and how long it takes
		verdict      time.Duration // after the report
		whole        bool
		closed       time.Duration
	}{
		{"before the verdict", time.Second, time.Second, 5 * time.Second, true, 4 * time.Second},
		{"across the verdict", time.Second, 5 * time.Second, 3 * time.Second, true, 8 * time.Second},
		{"for too long", time.Second, time.Hour, 3 * time.Second, false, 17 * time.Second},
		{"beside an agent that hangs", time.Second, time.Hour, time.Minute, false, 17 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &trickle{left: tc.body}
				never := dead(0, 0, new(time.Time))
				tr := &Transport{CallTimeout: 2 * time.Second, Reporter: stubborn(tc.verdict)}
				tr.Base = roundTrip(func(r *http.Request) (*http.Response, error) {
					b.ctx = r.Context()
					ctx, cancel := context.WithTimeout(r.Context(), tr.CallTimeout+tc.header)
					defer cancel()
					_, _ = never(r.WithContext(ctx))
					return &http.Response{StatusCode: 200, Body: b}, nil
				})
				req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://peer/", nil)
				begin := time.Now()
				_, err := tr.RoundTrip(req)
				wantTimeout(t, err)
				tr.Wait()
				if got := b.closed.Sub(begin); got != tc.closed || b.whole != tc.whole {
					t.Errorf("closed after %s, whole %v; want %s, %v", got, b.whole, tc.closed, tc.whole)
				}
			})
		})
	}
}

func TestContextThatIsOverSendsNothing(t *testing.T) {
	tr := &Transport{CallTimeout: time.Hour, Base: roundTrip(func(*http.Request) (*http.Response, error) {
		t.Error("sent")
		return nil, errors.New("sent")
	})}
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("changed my mind")
	cancel(cause)
	body := &trickle{}
	req, _ := http.NewRequestWithContext(ctx, http.MethodPost, "http://peer/", body)
	if _, err := tr.RoundTrip(req); err != cause {
		t.Errorf("error %v, want the cause", err)
	}
	if body.closed.IsZero() {
		t.Error("the request's body was not closed")
	}
}

func TestNoBoundGoesStraightToBase(t *testing.T) {
	var got *http.Request
	fail := errors.New("fails")
	tr := &Transport{Base: roundTrip(func(r *http.Request) (*http.Response, error) {
		got = r
		return nil, fail
	})}
	req, _ := http.NewRequest(http.MethodGet, "http://peer/", nil)
	if _, err := tr.RoundTrip(req); err != fail || got != req {
		t.Errorf("got %v, %v", got, err)
	}
	// With a bound the error of Base comes through as it is.
	tr.CallTimeout = time.Hour
	if _, err := tr.RoundTrip(req); err != fail || got == req {
		t.Errorf("got %v, %v", got, err)
	}
}
