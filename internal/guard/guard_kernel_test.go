// SPDX-License-Identifier: Apache-2.0

package guard_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/guard"
	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
	"github.com/sockhealth/sockhealth/internal/netns"
)

const (
	// userTimeout has room for a first round that is late by seconds: until then nothing
	// keeps the connections of these tests.
	userTimeout = 6 * time.Second
	// probeWindow is that of the policy below.
	probeWindow = 3 * time.Second
	// late is how long a loaded machine may be late at most.
	late = 20 * time.Second
)

const slowReaders = `version: 1
defaults: {user_timeout: 6s, keepalive: {idle: 1s, interval: 1s, count: 5}}
peers: [{name: server, cidrs: [10.91.2.0/24], probe: {window: 3s, attempts: 5}}]
`

// one is the namespace that the guard covers.
type one struct{ ns *netns.NS }

func (o one) All() []*netns.NS {
	own, err := o.ns.Dup()
	if err != nil {
		return nil
	}
	return []*netns.NS{own}
}

// start runs a guard; stop ends it, as the agent's end would.
func start(t *testing.T, b *loadertest.Bed) (g *guard.Guard, stop func()) {
	t.Helper()
	// The kernel's own number of unanswered probes is to end nothing here.
	err := b.Client.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/tcp_retries2", []byte("200"), 0) })
	if err != nil {
		t.Fatal(err)
	}
	g = guard.New(guard.Config{
		Kernel: b.Programs, Namespaces: one{b.Client}, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- g.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return g, stop
}

// fill sends until the peer takes no more, and goes on whenever it does.
func fill(t *testing.T, c *net.TCPConn) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for buf := make([]byte, 1<<20); ; {
			if _, err := c.Write(buf); err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = c.SetDeadline(time.Unix(1, 0))
		<-done
	})
}

// shut waits until the peer's window is shut and the guard has it.
func shut(t *testing.T, g *guard.Guard, n uint64) {
	t.Helper()
	labtest.Eventually(t, late, func() bool {
		var sum uint64
		for _, k := range g.Status().Guarded {
			sum += k
		}
		return sum == n
	}, "they are guarded")
}

// lives reports whether a connection is open.
func lives(t *testing.T, c *net.TCPConn) bool {
	t.Helper()
	return labtest.TCPInfo(t, c).State == unix.BPF_TCP_ESTABLISHED
}

// TestSlowReaders: a peer that reads nothing, and one that reads a little now and
// then, live two and a half times as long as the user timeout. When the path is gone both end
// within the user timeout and the time between two passes.
func TestSlowReaders(t *testing.T) {
	b := loadertest.New(t, slowReaders)
	loadertest.Need(t, b.Programs, kernel.Guard)
	g, _ := start(t, b)
	never, neverPeer := labtest.Pair(t, b.Lab, 0)
	sometimes, sometimesPeer := labtest.NarrowPair(t, b.Lab, 16<<10)
	fill(t, never)
	fill(t, sometimes)
	shut(t, g, 2)
	for began, buf := time.Now(), make([]byte, 4<<10); time.Since(began) < userTimeout*5/2; time.Sleep(userTimeout / 8) {
		if _, err := sometimesPeer.Read(buf); err != nil {
			t.Fatal(err)
		}
		if !lives(t, never) || !lives(t, sometimes) {
			t.Fatalf("after %s: alive %t and %t", time.Since(began), lives(t, never), lives(t, sometimes))
		}
	}
	// So that what comes next does not depend on how long the window was shut.
	if got := labtest.RTOMax(t, never); got != probeWindow/2 && loadertest.Has(t, b.Programs, kernel.RTOCap) {
		t.Errorf("the kernel's probes are up to %s apart", got)
	}
	for _, c := range []*net.TCPConn{neverPeer, sometimesPeer} {
		labtest.Fault(t)(b.DropPort(labtest.Addr(c.LocalAddr()).Port()))
	}
	dropped := time.Now()
	bound := userTimeout + g.Status().Interval
	if !loadertest.Has(t, b.Programs, kernel.RTOCap) {
		bound = 4 * time.Minute
		if testing.Short() {
			return // TestSilent has it of a window that was not shut for so long
		}
	}
	labtest.Eventually(t, bound+late, func() bool { return !lives(t, never) && !lives(t, sometimes) }, "both are ended")
	t.Logf("ended %s after their path, bound %s", time.Since(dropped), bound)
	for _, c := range []*net.TCPConn{never, sometimes} {
		if errno := labtest.Getsockopt(t, c, unix.SOL_SOCKET, unix.SO_ERROR); errno != 0 && unix.Errno(errno) != unix.ETIMEDOUT {
			t.Errorf("ended with %v", unix.Errno(errno))
		}
	}
}

// TestSilent: a guarded connection whose peer stops answering soon after it shut its
// window ends soon: within the user timeout and the time between two passes, and where
// the kernel's probes are not paced at the third of them that gets no answer.
func TestSilent(t *testing.T) {
	b := loadertest.New(t, slowReaders)
	loadertest.Need(t, b.Programs, kernel.Guard)
	g, _ := start(t, b)
	c, peer := labtest.Pair(t, b.Lab, 0)
	began := time.Now()
	fill(t, c)
	shut(t, g, 1)
	labtest.Fault(t)(b.DropPort(labtest.Addr(peer.LocalAddr()).Port()))
	dropped := time.Now()
	bound := userTimeout + g.Status().Interval
	if !loadertest.Has(t, b.Programs, kernel.RTOCap) {
		// Each comes after twice as long: the next one no later than the window has been
		// shut for as long again, and a first interval.
		bound = 7 * (dropped.Sub(began) + time.Second)
	}
	labtest.Eventually(t, bound+late, func() bool { return !lives(t, c) }, "it is ended")
	t.Logf("ended %s after its path, bound %s", time.Since(dropped), bound)
	if errno := unix.Errno(labtest.Getsockopt(t, c, unix.SOL_SOCKET, unix.SO_ERROR)); errno != 0 && errno != unix.ETIMEDOUT {
		t.Errorf("ended with %v", errno)
	}
}

// TestStops: where no pass comes any more, a peer that does not read lives on, for a
// time that is finite.
func TestStops(t *testing.T) {
	b := loadertest.New(t, slowReaders)
	loadertest.Need(t, b.Programs, kernel.Guard)
	g, stop := start(t, b)
	c, peer := labtest.Pair(t, b.Lab, 0)
	began := time.Now()
	fill(t, c)
	shut(t, g, 1)
	stop()
	left, most := labtest.Options(t, c).UserTimeout, 20*time.Minute
	if !loadertest.Has(t, b.Programs, kernel.RTOCap) {
		most = time.Minute + time.Since(began) // nor are the kernel's probes further apart
	}
	if left < 10*userTimeout || left > most {
		t.Errorf("user timeout %s, want one that is finite and long, up to %s", left, most)
	}
	stopped := time.Now()
	labtest.Eventually(t, 2*userTimeout+late, func() bool { return time.Since(stopped) > userTimeout*3/2 || !lives(t, c) }, "time to pass")
	if !lives(t, c) {
		t.Fatal("it is ended")
	}
	// The next agent goes on with it.
	g, _ = start(t, b)
	shut(t, g, 1)
	go io.Copy(io.Discard, peer)
	_ = c.SetWriteDeadline(time.Unix(1, 0)) // no more
	labtest.Eventually(t, late, func() bool { return labtest.Options(t, c).UserTimeout == userTimeout }, "it has its user timeout back")
	if !lives(t, c) {
		t.Fatal("it is ended")
	}
}

// TestUnguarded: without the guard the kernel ends a peer that does not read
// (kernel-facts L1). Where it no longer does, none is needed.
func TestUnguarded(t *testing.T) {
	b := loadertest.New(t, slowReaders)
	c, _ := labtest.Pair(t, b.Lab, 0)
	fill(t, c)
	labtest.Eventually(t, userTimeout+late, func() bool { return !lives(t, c) }, "it is ended")
	if err := c.SetReadDeadline(time.Now().Add(late)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, unix.ETIMEDOUT) && !errors.Is(err, unix.EPIPE) && !errors.Is(err, io.EOF) {
		t.Errorf("read ends with %v", err)
	}
}
