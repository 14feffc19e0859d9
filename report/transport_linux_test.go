// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// waysToBound asks for a URL under the bounds that Transport heeds.
func waysToBound() map[string]func(*testing.T, *Transport, *http.Client, string) error {
	const bound = time.Second // for a connection, too
	return map[string]func(*testing.T, *Transport, *http.Client, string) error{
		"CallTimeout": func(t *testing.T, tr *Transport, c *http.Client, url string) error {
			tr.CallTimeout = bound
			_, err := get(t, c, t.Context(), url)
			return err
		},
		"context": func(t *testing.T, _ *Transport, c *http.Client, url string) error {
			ctx, cancel := context.WithTimeout(t.Context(), bound)
			defer cancel() // at once after the return: must not end the kept request
			_, err := get(t, c, ctx, url)
			return err
		},
		"http.Client.Timeout": func(t *testing.T, _ *Transport, c *http.Client, url string) error {
			c.Timeout = bound
			_, err := get(t, c, t.Context(), url)
			return err
		},
		"the sooner of two": func(t *testing.T, tr *Transport, c *http.Client, url string) error {
			tr.CallTimeout, c.Timeout = bound, time.Hour
			_, err := get(t, c, t.Context(), url)
			return err
		},
	}
}

// Each way to bound a call makes the same report.
func TestTransportReports(t *testing.T) {
	for name, ask := range waysToBound() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, rep := newPeer(t, nil), newReporter()
			results := make(chan *Response, 1)
			tr := &Transport{Reporter: rep, OnResult: func(_ Request, r *Response, err error) {
				if err != nil {
					t.Errorf("report: %v", err)
				}
				results <- r
			}}
			c := client(t, tr, nil)
			begin := time.Now()
			err := ask(t, tr, c, p.URL+"/slow")
			wantTimeout(t, err)
			req := recv(t, "the report", rep.asked)
			took := time.Since(begin)
			if from := recv(t, "the request", p.arrived); req.Local != from {
				t.Errorf("reported local %s, the peer saw %s", req.Local, from)
			}
			if want := p.Listener.Addr().String(); req.Peer != want {
				t.Errorf("reported peer %s, want %s", req.Peer, want)
			}
			if ms := took.Milliseconds() + 1; req.ElapsedMS < 1 || req.ElapsedMS > ms {
				t.Errorf("reported age %d ms, want 1 to %d", req.ElapsedMS, ms)
			}
			// The evidence stands until the verdict is in, and goes then.
			none(t, "the request was aborted before its verdict", p.aborted)
			want := &Response{Results: []Result{{Verdict: "dead_path"}}}
			rep.verdict <- want
			recv(t, "the request's end", p.aborted)
			if got := recv(t, "OnResult", results); got != want {
				t.Errorf("OnResult was told %v", got)
			}
			tr.Wait()
		})
	}
}

// The late answer of a kept socket is drained and its connection used again.
func TestTransportLateAnswer(t *testing.T) {
	p, rep := newPeer(t, nil), newReporter()
	tr := &Transport{Reporter: rep}
	c := client(t, tr, nil)
	tr.Base.(*http.Transport).MaxConnsPerHost = 1
	getSlow(t, c, p, 1)
	recv(t, "the report", rep.asked)
	p.answer <- struct{}{}
	tr.CallTimeout = slack
	// Only one connection is allowed: this waits until it is back.
	if _, err := get(t, c, t.Context(), p.URL); err != nil {
		t.Fatal(err)
	}
	if n := p.conns.Load(); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
	rep.verdict <- &Response{}
	tr.Wait()
	none(t, "aborted", p.aborted)
}

func TestTransportCancelIsNoReport(t *testing.T) {
	cause := errors.New("changed my mind")
	p, rep := newPeer(t, nil), newReporter()
	c := client(t, &Transport{Reporter: rep, CallTimeout: time.Hour}, nil)
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		<-p.arrived
		cancel(cause)
	}()
	_, err := get(t, c, ctx, p.URL+"/slow")
	if !errors.Is(err, cause) {
		t.Errorf("error %v, want the cause", err)
	}
	recv(t, "the request's end", p.aborted)
	none(t, "a report", rep.asked)
}

func TestTransportFastAnswersShareOneConnection(t *testing.T) {
	p, rep := newPeer(t, nil), newReporter()
	c := client(t, &Transport{Reporter: rep, CallTimeout: time.Hour}, nil)
	for range 20 {
		if got, err := get(t, c, t.Context(), p.URL); err != nil || got != "well" {
			t.Fatalf("got %q, %v", got, err)
		}
	}
	if n := p.conns.Load(); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
	none(t, "a report", rep.asked)
}

// Whatever exceeds MaxPending is cancelled without a report; so is everything
// after Close.
func TestTransportMaxPending(t *testing.T) {
	p, rep := newPeer(t, nil), newReporter()
	tr := &Transport{Reporter: rep, MaxPending: 2}
	c := client(t, tr, nil)
	getSlow(t, c, p, 5)
	for range 3 {
		recv(t, "the end of a request too many", p.aborted)
	}
	for range 2 {
		recv(t, "a report", rep.asked)
	}
	none(t, "a third report", rep.asked)
	none(t, "a kept request was aborted", p.aborted)

	tr.Close() // ends the two
	for range 2 {
		recv(t, "the end of a kept request", p.aborted)
	}
	getSlow(t, c, p, 1)
	recv(t, "the end of a request after Close", p.aborted)
	none(t, "a report after Close", rep.asked)
}

// A deadline that strikes while the body is read cancels, as Base would.
func TestTransportBodyDeadline(t *testing.T) {
	p := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "half")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	defer p.Close()
	rep := newReporter()
	c := client(t, &Transport{Reporter: rep}, nil)
	ctx, pass := newExpiry(t)
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, p.URL, nil)
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	got := make([]byte, 4)
	if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != "half" {
		t.Errorf("got %q, %v", got, err)
	}
	pass()
	if got, err := io.ReadAll(resp.Body); len(got) > 0 || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %q, %v; want DeadlineExceeded", got, err)
	}
	none(t, "a report", rep.asked)
}

// Over HTTP/2 a call that runs out of time leaves the others on its connection
// alone.
func TestTransportHTTP2Siblings(t *testing.T) {
	var h2 http.Protocols
	h2.SetUnencryptedHTTP2(true)
	p, rep := newPeer(t, &h2), newReporter()
	tr := &Transport{Reporter: rep}
	c := client(t, tr, &h2)
	if _, err := get(t, c, t.Context(), p.URL); err != nil { // opens the connection
		t.Fatal(err)
	}
	sibling := make(chan error, 1)
	go func() {
		_, err := get(t, c, t.Context(), p.URL+"/slow")
		sibling <- err
	}()
	from := recv(t, "the sibling", p.arrived)
	getSlow(t, c, p, 1)
	if req := recv(t, "the report", rep.asked); req.Local != from {
		t.Errorf("reported %s, the shared connection is %s", req.Local, from)
	}
	rep.verdict <- &Response{}
	recv(t, "the end of the one stream", p.aborted)
	none(t, "the sibling was aborted", p.aborted)
	p.answer <- struct{}{}
	if err := recv(t, "the sibling's answer", sibling); err != nil {
		t.Error(err)
	}
	if n := p.conns.Load(); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
}

// The bound may strike while the request is still being sent: the age then
// counts from when the connection was given the request.
func TestTransportStuckUpload(t *testing.T) {
	stop := make(chan struct{})
	ctx, pass := newExpiry(t)
	p := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		time.AfterFunc(100*time.Millisecond, pass)
		<-stop // reads no body
	}))
	defer p.Close()
	defer close(stop)
	rep := newReporter()
	tr := &Transport{Reporter: rep}
	c := client(t, tr, nil)
	body, feed := io.Pipe()
	go func() {
		for {
			if _, err := io.WriteString(feed, strings.Repeat("x", 1<<16)); err != nil {
				return
			}
		}
	}()
	req, _ := http.NewRequestWithContext(ctx, http.MethodPost, p.URL, body)
	_, err := c.Do(req)
	wantTimeout(t, err)
	if r := recv(t, "the report", rep.asked); r.ElapsedMS < 100 {
		t.Errorf("reported age %d ms, want at least 100", r.ElapsedMS)
	}
	rep.verdict <- &Response{}
	tr.Wait()
}

func TestTransportUpgradeOutlivesTheDeadline(t *testing.T) {
	p := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		_, _ = io.CopyN(conn, rw, 4)
	}))
	defer p.Close()
	c := client(t, &Transport{Reporter: newReporter()}, nil)
	ctx, cancel := context.WithTimeout(t.Context(), slack)
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, p.URL, nil)
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "echo")
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	rw := resp.Body.(io.ReadWriteCloser)
	defer rw.Close()
	if _, err := io.WriteString(rw, "ping"); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(rw); err != nil || string(b) != "ping" {
		t.Errorf("got %q, %v", b, err)
	}
}
