// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sockhealth/sockhealth/internal/verdict"
)

// A slow answer costs no connection: where the verdict says that the peer lives
// the answer is waited for and its connection used again. Any other verdict ends
// the request, as its context would have.
func TestTransportVerdicts(t *testing.T) {
	kept := map[string]bool{"alive none": true, "local_unread none": true, "alive_slow none": true, "alive_hung none": true}
	for _, w := range verdict.Words() {
		for _, action := range []string{"none", "closed", "deferred", "observed", "frozen", "failed"} {
			name := string(w) + " " + action
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				testVerdict(t, &Response{Results: []Result{{Verdict: string(w), Action: action}}}, nil, kept[name])
			})
		}
	}
	t.Run("one of two", func(t *testing.T) {
		testVerdict(t, &Response{Results: []Result{{Verdict: "alive", Action: "none"}, {Verdict: "dead_path", Action: "closed"}}}, nil, false)
	})
	t.Run("no result", func(t *testing.T) { testVerdict(t, &Response{}, nil, false) })
	t.Run("no agent", func(t *testing.T) { testVerdict(t, nil, ErrUnreachable, false) })
}

// saying is an agent that answers so, when told to.
type saying struct {
	resp *Response
	err  error
	now  chan struct{}
}

func (s *saying) Report(context.Context, Request) (*Response, error) {
	<-s.now
	return s.resp, s.err
}

func testVerdict(t *testing.T, resp *Response, err error, kept bool) {
	p, agent := newPeer(t, nil), &saying{resp, err, make(chan struct{})}
	told := make(chan error, 1)
	tr := &Transport{Reporter: agent, OnResult: func(_ Request, _ *Response, err error) { told <- err }}
	c := client(t, tr, nil)
	tr.Base.(*http.Transport).MaxConnsPerHost = 1
	getSlow(t, c, p, 1)
	close(agent.now)
	if got := recv(t, "OnResult", told); !errors.Is(got, err) {
		t.Errorf("OnResult was told %v", got)
	}
	if !kept {
		recv(t, "the request's end", p.aborted)
		tr.Wait()
		return
	}
	select {
	case <-p.aborted:
		t.Fatal("the request was ended by a verdict that keeps the connection")
	case <-time.After(100 * time.Millisecond): // long after the verdict
	}
	p.answer <- struct{}{}
	tr.Wait()
	tr.CallTimeout = slack
	if _, err := get(t, c, t.Context(), p.URL); err != nil {
		t.Fatal(err)
	}
	if n := p.conns.Load(); n != 1 {
		t.Errorf("%d connections, want the one", n)
	}
}

// patientAgent finds that the peer is alive, after that time.
type patientAgent time.Duration

func (a patientAgent) Report(context.Context, Request) (*Response, error) {
	time.Sleep(time.Duration(a))
	return &Response{Results: []Result{{Verdict: "alive_slow", Action: "none"}}}, nil
}

// KeepFor bounds the wait for the late answer, too, from the caller's timeout
// on.
func TestLateAnswerIsAwaitedForKeepFor(t *testing.T) {
	for name, tc := range map[string]struct{ keep, verdict, ended time.Duration }{
		"default": {0, 3 * time.Second, 17 * time.Second},
		"shorter": {5 * time.Second, 3 * time.Second, 7 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var ended time.Time
				tr := &Transport{
					Base: dead(0, 0, &ended), CallTimeout: 2 * time.Second, KeepFor: tc.keep,
					Reporter: patientAgent(tc.verdict),
				}
				req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://peer/", nil)
				begin := time.Now()
				_, err := tr.RoundTrip(req)
				wantTimeout(t, err)
				tr.Wait()
				if got := ended.Sub(begin); got != tc.ended {
					t.Errorf("the request ended after %s, want %s", got, tc.ended)
				}
			})
		})
	}
}

// endless is a body that never ends.
type endless struct {
	read   int
	closed bool
}

func (e *endless) Read(p []byte) (int, error) {
	e.read += len(p)
	return len(p), nil
}

func (e *endless) Close() error {
	e.closed = true
	return nil
}

// A late answer is not read for longer than its connection is worth.
func TestLateAnswerIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		body := &endless{}
		never := dead(0, 0, new(time.Time))
		tr := &Transport{CallTimeout: 2 * time.Second, Reporter: patientAgent(time.Second)}
		tr.Base = roundTrip(func(r *http.Request) (*http.Response, error) {
			ctx, cancel := context.WithTimeout(r.Context(), 10*time.Second)
			defer cancel()
			_, _ = never(r.WithContext(ctx))
			return &http.Response{StatusCode: 200, Body: body}, nil
		})
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://peer/", nil)
		begin := time.Now()
		_, err := tr.RoundTrip(req)
		wantTimeout(t, err)
		tr.Wait()
		if took := time.Since(begin); took != 10*time.Second || !body.closed || body.read == 0 || body.read > maxDrain+64<<10 {
			t.Errorf("after %s, closed %v, %d bytes read; want 10s and about %d", took, body.closed, body.read, maxDrain)
		}
	})
}

// A request that waits for its late answer alone gives way to one that has no
// verdict yet, the oldest first.
func TestReportsGoBeforeLateAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ended [4]time.Time
		agent := &counting{}
		tr := &Transport{CallTimeout: 2 * time.Second, Reporter: agent, MaxPending: 2}
		begin := time.Now()
		ask := func(n int, after time.Duration) {
			time.Sleep(time.Until(begin.Add(after)))
			tr.Base = dead(0, 0, &ended[n])
			req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://peer/", nil)
			_, err := tr.RoundTrip(req)
			wantTimeout(t, err)
		}
		ask(0, 0)              // times out at 2 s, its verdict comes at 3 s
		ask(1, 4*time.Second)  // 6 s, 7 s
		ask(2, 7*time.Second)  // 9 s: takes the first one's place
		ask(3, 10*time.Second) // 12 s: the second one's
		tr.Wait()
		for n, want := range []time.Duration{9 * time.Second, 12 * time.Second, 24 * time.Second, 27 * time.Second} {
			if got := ended[n].Sub(begin); got != want {
				t.Errorf("request %d ended after %s, want %s", n, got, want)
			}
		}
		if agent.reports != 4 {
			t.Errorf("%d reports, want one of each", agent.reports)
		}
	})
}

// counting is a patientAgent of one second that counts.
type counting struct{ reports int }

func (c *counting) Report(ctx context.Context, r Request) (*Response, error) {
	c.reports++
	return patientAgent(time.Second).Report(ctx, r)
}

// Places are given back however their requests end, so that Wait returns and the
// limit holds.
func TestPlaces(t *testing.T) {
	var p pending
	a, _ := p.enter(2)
	b, _ := p.enter(2)
	if _, ok := p.enter(2); ok {
		t.Error("a third place of two")
	}
	b.lend()
	c, ok := p.enter(2)
	if !ok || b.ctx.Err() == nil || a.ctx.Err() != nil || c.ctx.Err() != nil {
		t.Errorf("the place of the one that is judged: %v", ok)
	}
	if _, ok := p.enter(2); ok {
		t.Error("a place was given twice")
	}
	a.lend()
	a.leave()
	b.leave()
	if p.n != 1 || p.given != 0 || len(p.judged) != 0 {
		t.Errorf("%d places, %d given, %d judged", p.n, p.given, len(p.judged))
	}
	if d, ok := p.enter(2); !ok {
		t.Error("no place where one is free")
	} else {
		d.leave()
	}
	c.leave()
	p.wait()
	p.close()
	if _, ok := p.enter(2); ok {
		t.Error("a place after close")
	}
}
