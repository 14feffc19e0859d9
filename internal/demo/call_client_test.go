// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/sockhealth/sockhealth/report"
)

// agentStub is an agent that answers so after a while.
type agentStub struct {
	after time.Duration
	resp  *report.Response
	err   error

	mu    sync.Mutex // guards asked
	asked []report.Request
}

func (a *agentStub) Report(ctx context.Context, r report.Request) (*report.Response, error) {
	a.mu.Lock()
	a.asked = append(a.asked, r)
	a.mu.Unlock()
	if !sleep(ctx, a.after) {
		return nil, ctx.Err()
	}
	return a.resp, a.err
}

// callerOn is a client whose peers are served by one function each.
func callerOn(agent report.Reporter, serve func(context.Context, net.Conn)) (*caller, *bytes.Buffer) {
	var out bytes.Buffer
	began := time.Now()
	return &caller{
		dial: func(ctx context.Context, addr string) (net.Conn, error) {
			if addr == "nowhere" {
				return nil, errors.New("no such place")
			}
			a, b := net.Pipe()
			go serve(context.WithoutCancel(ctx), b)
			return &named{a, addr}, nil
		},
		reporter: agent, timeout: callTimeout, out: &out,
		now: func() time.Duration { return time.Since(began) },
	}, &out
}

// named is a connection with addresses.
type named struct {
	net.Conn
	to string
}

func (n *named) LocalAddr() net.Addr  { return &net.UnixAddr{Name: "me"} }
func (n *named) RemoteAddr() net.Addr { return &net.UnixAddr{Name: n.to} }

// orders are lines for a client; it goes on to wait for more.
func orders(all ...order) io.Reader {
	var b bytes.Buffer
	for _, o := range all {
		if err := writeLine(&b, o); err != nil {
			panic(err)
		}
	}
	return &b
}

// callEvents decodes what a client said.
func callEvents(t *testing.T, out *bytes.Buffer) []callEvent {
	t.Helper()
	var all []callEvent
	for d := json.NewDecoder(out); ; {
		var e callEvent
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

// A slow call is reported, and its answer is waited for. One that is answered in
// time is not, and overtakes it.
func TestCallerReportsAndWaitsOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		agent := &agentStub{after: 20 * time.Millisecond, resp: &report.Response{Results: []report.Result{{Verdict: "alive_slow"}}}}
		c, out := callerOn(agent, func(ctx context.Context, conn net.Conn) { serveChannel(ctx, conn, "peer") })
		in := orders(
			order{Do: orderOpen, Case: 3, Name: "channel", Peer: "there"},
			order{Do: orderCall, Case: 3, Name: "slow", Channel: "channel", At: time.Second, Work: callWork},
			order{Do: orderCall, Case: 3, Name: "bad", Channel: "channel", At: 2 * time.Second, Fail: true},
		)
		if err := c.run(t.Context(), in); err != nil {
			t.Fatal(err)
		}
		s := time.Second
		want := []callEvent{
			{Kind: eventOpened, Case: 3, Name: "channel", Local: "me"},
			{Kind: eventSent, Case: 3, Name: "slow", At: s, Local: "me"},
			{Kind: eventSent, Case: 3, Name: "bad", At: 2 * s, Local: "me"},
			{Kind: eventDone, Case: 3, Name: "bad", At: 2 * s, Local: "me", Server: "peer", Err: callRefusal},
			{Kind: eventReporting, Case: 3, Name: "slow", At: 3 * s},
			{Kind: eventReported, Case: 3, Name: "slow", At: 3*s + agent.after, Results: agent.resp.Results},
			{Kind: eventDone, Case: 3, Name: "slow", At: 7 * s, Local: "me", Server: "peer"},
		}
		if diff := cmp.Diff(want, callEvents(t, out)); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]report.Request{{Local: "me", Peer: "there", ElapsedMS: 2000}}, agent.asked); diff != "" {
			t.Errorf("reported: %s", diff)
		}
	})
}

// What the agent refuses is told, and ends nothing.
func TestCallerReportsAPeerAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		agent := &agentStub{err: errors.New("too many")}
		c, out := callerOn(agent, nil)
		if err := c.run(t.Context(), orders(order{Do: orderReport, Case: 1, Peer: "there", At: time.Second})); err != nil {
			t.Fatal(err)
		}
		want := []callEvent{
			{Kind: eventReporting, Case: 1, At: time.Second},
			{Kind: eventReported, Case: 1, At: time.Second, Err: "too many"},
		}
		if diff := cmp.Diff(want, callEvents(t, out)); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]report.Request{{Peer: "there", ElapsedMS: 2000}}, agent.asked); diff != "" {
			t.Errorf("reported: %s", diff)
		}
	})
}

// All calls on a channel end with it, those that come later, too.
func TestCallsEndWithTheirChannel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, out := callerOn(&agentStub{}, func(ctx context.Context, conn net.Conn) {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			serveChannel(ctx, conn, "peer")
		})
		in := orders(
			order{Do: orderOpen, Name: "channel", Peer: "there"},
			order{Do: orderCall, Name: "one", Channel: "channel", At: 1, Work: callWork},
			order{Do: orderCall, Name: "two", Channel: "channel", At: 2, Work: callWork},
			order{Do: orderCall, Name: "three", Channel: "channel", At: 2 * time.Second},
		)
		if err := c.run(t.Context(), in); err != nil {
			t.Fatal(err)
		}
		var failed []string
		for _, e := range callEvents(t, out) {
			if e.Kind == eventDone && e.Err != "" {
				failed = append(failed, e.Name)
			}
		}
		if slices.Sort(failed); !slices.Equal(failed, []string{"one", "three", "two"}) {
			t.Errorf("failed: %q", failed)
		}
	})
}

func TestCallerFails(t *testing.T) {
	for want, in := range map[string]io.Reader{
		"open channel: no such place":               orders(order{Do: orderOpen, Peer: "nowhere"}),
		`call: no channel "channel" of case 2`:      orders(order{Do: orderCall, Case: 2, Channel: "channel"}),
		`obey order: "dance" is none`:               orders(order{Do: "dance"}),
		"read order: invalid character 'x' looking": strings.NewReader("x"),
	} {
		c, _ := callerOn(&agentStub{}, nil)
		if err := c.run(t.Context(), in); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// The client ends when it is told to, whatever it waits for.
func TestCallerEndsInTheMiddle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := callerOn(&agentStub{after: time.Hour}, func(ctx context.Context, conn net.Conn) { serveChannel(ctx, conn, "peer") })
		in, w := io.Pipe() // which never ends
		go func() {
			_, _ = io.Copy(w, orders(
				order{Do: orderOpen, Name: "channel", Peer: "there"},
				order{Do: orderCall, Name: "call", Channel: "channel", At: 1, Work: time.Minute},
				order{Do: orderReport, Peer: "there"},
			))
		}()
		ctx, cancel := context.WithTimeoutCause(t.Context(), 3*time.Second, context.Canceled)
		defer cancel()
		if err := c.run(ctx, in); err != nil {
			t.Error(err)
		}
		_ = in.Close() // the reader goes with its process
	})
}

func TestErrorsInWords(t *testing.T) {
	for want, err := range map[string]error{
		"ECONNABORTED": &net.OpError{Op: "read", Err: os.NewSyscallError("read", syscall.ECONNABORTED)},
		"EOF":          io.EOF,
	} {
		if got := inWords(err); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
