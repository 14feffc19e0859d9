// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// pipes is a network whose connections are pipes with names.
type pipes struct {
	name    string
	dialled atomic.Int64
	accepts chan net.Conn
	closed  chan struct{}
	close   sync.Once
}

func newPipes(name string) *pipes {
	return &pipes{name: name, accepts: make(chan net.Conn), closed: make(chan struct{})}
}

// pipe is one end.
type pipe struct {
	net.Conn
	name string
}

func (p *pipe) LocalAddr() net.Addr { return &net.UnixAddr{Name: p.name} }

// dial takes longer each time, so that an answer on the first connection comes
// before there is a second.
func (p *pipes) dial() (net.Conn, error) {
	n := p.dialled.Add(1)
	time.Sleep(time.Duration(n) * 10 * time.Millisecond)
	a, b := net.Pipe()
	p.accepts <- b
	return &pipe{a, fmt.Sprint(p.name, n)}, nil
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.accepts:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.close.Do(func() { close(p.closed) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{} }

// silence answers nothing once it has fallen.
type silence struct {
	next http.Handler
	from time.Time
}

func (s *silence) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if time.Now().Before(s.from) {
		s.next.ServeHTTP(w, r)
		return
	}
	_, _ = io.Copy(io.Discard, r.Body)
	<-r.Context().Done()
}

func decodeEvents(t *testing.T, out []byte) []event {
	t.Helper()
	var all []event
	d := json.NewDecoder(bytes.NewReader(out))
	for {
		var e event
		err := d.Decode(&e)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
}

// The client without any help: each request draws a stale connection of its
// pool and waits in vain, until none is left.
func TestClientDrawsItsStalePoolToTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		const fault = time.Second
		old, fresh := newPipes("old"), newPipes("fresh")
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		go func() { _ = serve(ctx, fresh, "replacement") }()
		echo := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			_, _ = io.WriteString(w, "peer")
		})
		peer := &http.Server{Handler: &silence{next: echo, from: began.Add(fault)}}
		go func() { _ = peer.Serve(old) }()
		defer func() { _ = peer.Close() }()
		pool := &http.Transport{
			MaxIdleConnsPerHost: poolConns,
			DialContext: func(context.Context, string, string) (net.Conn, error) {
				if time.Since(began) < fault {
					return old.dial()
				}
				return fresh.dial()
			},
		}
		defer pool.CloseIdleConnections()
		c := &client{
			http: &http.Client{Transport: pool, Timeout: poolPatience}, url: "http://buffer/",
			now: func() time.Duration { return time.Since(began) },
		}
		playing, stop := context.WithTimeout(ctx, 150*time.Second)
		defer stop()
		var out bytes.Buffer
		if err := c.run(playing, strings.NewReader("3000000000\n"), &out); err != nil {
			t.Fatal(err)
		}
		want, got := stalePool(), decodeEvents(t, out.Bytes())
		if drawn := drawnFrom(got); !slices.Equal(drawn, want[0].Pool) {
			t.Errorf("drawn %q", drawn)
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Error(diff)
		}
	})
}

// stalePool is what the client tells of a pool that it draws to the end.
func stalePool() []event {
	dialling := poolConns * 10 * time.Millisecond
	want := []event{{Kind: eventReady, At: dialling, Pool: []string{"old1", "old2", "old3", "old4"}}}
	at := 3 * time.Second
	for range poolConns {
		want = append(want,
			event{Kind: eventSent, At: at},
			event{Kind: eventDone, At: at + poolPatience, Local: "old", Err: "timeout"})
		at += poolPatience + poolPause
	}
	for _, took := range []time.Duration{10 * time.Millisecond, 0} {
		want = append(want,
			event{Kind: eventSent, At: at},
			event{Kind: eventDone, At: at + took, Local: "fresh1", Server: "replacement"})
		at += took + poolPause
	}
	return want
}

// drawnFrom makes events comparable, and returns the stale connections in them.
func drawnFrom(got []event) []string {
	var drawn []string
	for i := range got {
		if got[i].Err != "" { // whose words they are matters to nobody
			got[i].Err = "timeout"
		}
		if strings.HasPrefix(got[i].Local, "old") { // each once, in any order
			drawn = append(drawn, got[i].Local)
			got[i].Local = "old"
		}
		slices.Sort(got[i].Pool)
	}
	slices.Sort(drawn)
	return drawn
}

func TestClientWithoutAPeerFails(t *testing.T) {
	refused := errors.New("refused")
	c := &client{
		http: &http.Client{Transport: &http.Transport{
			DialContext: func(context.Context, string, string) (net.Conn, error) { return nil, refused },
		}},
		url: "http://buffer/", now: func() time.Duration { return 0 },
	}
	if err := c.run(t.Context(), strings.NewReader(""), io.Discard); err == nil || !strings.Contains(err.Error(), "open pool: refused") {
		t.Errorf("%v", err)
	}
}

func TestClientArgumentsComeBack(t *testing.T) {
	cfg := clientConfig{
		names: "/x/hosts", patience: 2 * time.Second, socket: "/x/report.sock",
		bound: bound{idle: 5 * time.Second, interval: 2 * time.Second, count: 5, userTimeout: 15 * time.Second},
	}
	args := cfg.args()
	if !slices.Equal(args[:2], []string{ClientCommand, poolName}) {
		t.Errorf("command %q", args[:2])
	}
	got, err := parseClient(args[2:])
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(cfg, got, cmp.AllowUnexported(clientConfig{}, bound{})); diff != "" {
		t.Error(diff)
	}
}
