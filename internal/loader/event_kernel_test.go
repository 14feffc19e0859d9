// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
)

// late is how late a timer may fire on a busy machine.
const late = 10 * time.Second

func mustCounters(t *testing.T, p *loader.Programs, name string) loader.Counters {
	t.Helper()
	all, err := p.Counters()
	if err != nil {
		t.Fatal(err)
	}
	c, ok := all[name]
	if !ok {
		t.Fatalf("no counters of policy %q in %v", name, all)
	}
	return c
}

func wantNoFaults(t *testing.T, p *loader.Programs) {
	t.Helper()
	faults, err := p.Faults()
	if err != nil {
		t.Fatal(err)
	}
	for i, n := range faults {
		if n != 0 {
			t.Errorf("fault %s: %d", loader.Fault(i), n)
		}
	}
}

// events collects what the programs tell, in the background.
func events(t *testing.T, p *loader.Programs) <-chan loader.Event {
	t.Helper()
	stream, err := p.Events()
	if err != nil {
		t.Fatal(err)
	}
	out := make(chan loader.Event, 1000)
	go func() {
		defer close(out)
		for {
			e, err := stream.Next()
			if errors.Is(err, loader.ErrClosed) {
				return
			}
			if err != nil {
				t.Errorf("read event: %v", err)
				return
			}
			out <- e
		}
	}()
	t.Cleanup(func() {
		stream.Close()
		for range out {
		}
	})
	return out
}

// next returns the next event about the connection.
func next(t *testing.T, events <-chan loader.Event, c *net.TCPConn) loader.Event {
	t.Helper()
	deadline := time.After(late)
	for {
		select {
		case e := <-events:
			if e.Local == labtest.Addr(c.LocalAddr()) && e.Remote == labtest.Addr(c.RemoteAddr()) {
				return e
			}
		case <-deadline:
			t.Fatalf("no event about %s", c.LocalAddr())
		}
	}
}

// readErr blocks until the connection ends and returns errno and time taken.
func readErr(t *testing.T, c *net.TCPConn, limit time.Duration) (error, time.Duration) {
	t.Helper()
	began := time.Now()
	if err := c.SetReadDeadline(began.Add(limit)); err != nil {
		t.Fatal(err)
	}
	_, err := io.Copy(io.Discard, c)
	return err, time.Since(began)
}

func TestIdleBound(t *testing.T) {
	b := loadertest.New(t, loadertest.Fast)
	events := events(t, b.Programs)
	client, server := labtest.Pair(t, b.Lab, 0)
	if _, err := server.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	io.ReadFull(client, make([]byte, 5))
	labtest.Fault(t)(b.DropPort(labtest.Addr(server.LocalAddr()).Port()))
	err, took := readErr(t, client, 3*time.Second+late)
	if !errors.Is(err, unix.ETIMEDOUT) || took < 2*time.Second {
		t.Errorf("read ended with %v after %v, want ETIMEDOUT after 3 s", err, took)
	}
	e := next(t, events, client)
	if e.Stall || e.Cause != loader.CauseIdle || e.Errno != unix.ETIMEDOUT || e.BytesReceived != 5 ||
		e.Netns != b.Client.Inode() || e.Cookie == 0 || e.ProbesOut == 0 {
		t.Errorf("event %+v", e)
	}
	if c := mustCounters(t, b.Programs, "server"); c.Closed[loader.CauseIdle] != 1 || c.BytesReceived != 5 {
		t.Errorf("counters %+v", c)
	}
	wantNoFaults(t, b.Programs)
}

func TestInFlightBound(t *testing.T) {
	b := loadertest.New(t, loadertest.Fast)
	events := events(t, b.Programs)
	client, server := labtest.Pair(t, b.Lab, 0)
	labtest.Fault(t)(b.DropPort(labtest.Addr(server.LocalAddr()).Port()))
	began := time.Now()
	if _, err := client.Write([]byte("ping")); err != nil {
		t.Fatal(err)
	}
	err, _ := readErr(t, client, 3*time.Second+late)
	if took := time.Since(began); !errors.Is(err, unix.ETIMEDOUT) || took < 3*time.Second {
		t.Errorf("read ended with %v after %v, want ETIMEDOUT after 3 s", err, took)
	}
	if e := next(t, events, client); !e.Stall || e.Retransmits != 0 {
		t.Errorf("first event %+v, want the first retransmission timeout", e)
	}
	e := next(t, events, client)
	if e.Stall || e.Cause != loader.CauseInFlight || e.Errno != unix.ETIMEDOUT || e.BytesAcked != 0 || e.Retransmits == 0 {
		t.Errorf("second event %+v, want the close", e)
	}
	if c := mustCounters(t, b.Programs, "server"); c.Closed[loader.CauseInFlight] != 1 || c.Stalls != 1 {
		t.Errorf("counters %+v", c)
	}
	wantNoFaults(t, b.Programs)
}

func TestResetAndFin(t *testing.T) {
	b := loadertest.New(t, loadertest.Fast)
	events := events(t, b.Programs)
	client, server := labtest.Pair(t, b.Lab, 0)
	server.SetLinger(0)
	server.Close()
	if err, _ := readErr(t, client, late); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("read ended with %v, want ECONNRESET", err)
	}
	if e := next(t, events, client); e.Stall || e.Cause != loader.CauseReset || e.Errno != unix.ECONNRESET {
		t.Errorf("event %+v, want a reset", e)
	}
	client, server = labtest.Pair(t, b.Lab, 0)
	if _, err := server.Write(make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Write(make([]byte, 70)); err != nil {
		t.Fatal(err)
	}
	io.ReadFull(server, make([]byte, 70))
	server.Close()
	if err, _ := readErr(t, client, late); err != nil {
		t.Errorf("read ended with %v, want FIN", err)
	}
	client.Close()
	labtest.Eventually(t, late, func() bool {
		c := mustCounters(t, b.Programs, "server")
		return c.Closed[loader.CauseNormal] == 1 && c.Closed[loader.CauseReset] == 1 && c.Open() == 0
	}, "one normal close and one reset")
	// SYN and FIN are no payload.
	if c := mustCounters(t, b.Programs, "server"); c.BytesReceived != 1000 || c.BytesAcked != 70 || c.OpenedOutbound != 2 || c.OpenedInbound != 0 {
		t.Errorf("counters %+v, want 1000 bytes received, 70 acknowledged, 2 opened outbound", c)
	}
	wantNoFaults(t, b.Programs)
}
