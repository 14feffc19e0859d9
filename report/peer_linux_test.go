// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"
)

// slack is how late a busy machine may be.
const slack = 10 * time.Second

// reporter is an agent that answers when told to.
type reporter struct {
	asked   chan Request
	verdict chan *Response // nil: answers at once
}

func newReporter() *reporter {
	return &reporter{asked: make(chan Request, 100), verdict: make(chan *Response)}
}

func (r *reporter) Report(ctx context.Context, req Request) (*Response, error) {
	r.asked <- req
	select {
	case v := <-r.verdict:
		return v, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// peer is a real HTTP server whose /slow answers when told to.
type peer struct {
	*httptest.Server
	conns   atomic.Int64 // connections accepted
	arrived chan string  // remote address of each request to /slow
	answer  chan struct{}
	aborted chan struct{} // one for each request to /slow whose client went away
}

func newPeer(t *testing.T, protocols *http.Protocols) *peer {
	p := &peer{arrived: make(chan string, 100), answer: make(chan struct{}, 100), aborted: make(chan struct{}, 100)}
	p.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/slow" {
			_, _ = io.WriteString(w, "well")
			return
		}
		p.arrived <- r.RemoteAddr
		select {
		case <-p.answer:
			_, _ = io.WriteString(w, "late")
		case <-r.Context().Done():
			p.aborted <- struct{}{}
		}
	}))
	p.Config.Protocols = protocols
	p.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			p.conns.Add(1)
		}
	}
	p.Start()
	t.Cleanup(p.Close)
	return p
}

// client returns an http.Client over tr, with a pool of its own.
func client(t *testing.T, tr *Transport, protocols *http.Protocols) *http.Client {
	base := &http.Transport{Protocols: protocols}
	tr.Base = base
	t.Cleanup(func() {
		tr.Close()
		base.CloseIdleConnections()
	})
	return &http.Client{Transport: tr}
}

func get(t *testing.T, c *http.Client, ctx context.Context, url string) (string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

func recv[T any](t *testing.T, what string, ch <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-ch:
	case <-time.After(slack):
		t.Fatalf("waited %s for %s", slack, what)
	}
	return v
}

func none[T any](t *testing.T, what string, ch <-chan T) {
	t.Helper()
	select {
	case <-ch:
		t.Errorf("unexpected: %s", what)
	default:
	}
}

func wantTimeout(t *testing.T, err error) {
	t.Helper()
	var ne net.Error
	if !errors.As(err, &ne) || !ne.Timeout() {
		t.Errorf("error %v is no timeout", err)
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v does not wrap context.DeadlineExceeded", err)
	}
}
