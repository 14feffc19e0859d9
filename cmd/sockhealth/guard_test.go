// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/api"
	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
)

const (
	guardTimeout = 3 * time.Second
	guardPolicy  = `version: 1
defaults: {user_timeout: 3s, keepalive: {idle: 1s, interval: 1s, count: 2}}
peers: [{name: slow, cidrs: [10.91.2.0/24], ports: [7100], direction: outbound}]
`
)

// slowPair connects to a peer that reads nothing.
func (a *runAgent) slowPair(t *testing.T) (c, peer *net.TCPConn) {
	t.Helper()
	labtest.Enter(t, a.cgroup)
	c, peer = labtest.Pair(t, a.Lab, 7100)
	_ = c.SetWriteDeadline(time.Now().Add(time.Second))
	if _, err := io.Copy(c, endless{}); err == nil {
		t.Fatal("the peer reads")
	}
	return c, peer
}

// endless are bytes.
type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }

func established(t *testing.T, c *net.TCPConn) bool {
	t.Helper()
	return labtest.TCPInfo(t, c).State == unix.BPF_TCP_ESTABLISHED
}

// TestGuard: a peer that does not read is told by status, list, explanation and
// metrics, and is bounded as the policy wants. When the agent is killed its connection
// lives on with a bound, and the next one goes on.
func TestGuard(t *testing.T) {
	loadertest.Need(t, loadertest.Load(t), kernel.Guard)
	a := newRunAgent(t)
	a.bpffs = loadertest.BPFFS(t)
	a.write(t, guardPolicy)
	a.startChecked(t)
	c, peer := a.slowPair(t)
	a.awaitPeer(t, "slow", "is guarded, and checked", func(p *api.PolicyStatus) bool {
		return p.Guarded == 1 && p.Guards == 1 && p.Expected == 1 && p.Bounded == 1
	})
	time.Sleep(2 * guardTimeout) // of the peer's silence
	p := a.peer(t, "slow")
	if !established(t, c) || p.DriftFound != 0 || p.DriftRepaired != 0 {
		t.Errorf("established %t, status %+v", established(t, c), p)
	}
	list := decoded[api.Sockets](t, a, a.ns, "sockets", "--run-dir", "run", "-o", "json")
	if len(list.Sockets) != 1 || !list.Sockets[0].Guarded || list.Sockets[0].IdleBoundMS != guardTimeout.Milliseconds() {
		t.Errorf("listed %+v", list)
	}
	out, _, _ := a.output(t, a.ns, "sockets", "explain", "--run-dir", "run", c.LocalAddr().String())
	for _, want := range []string{
		"guarded: the peer answers and does not read, so that the user timeout is ", "; 3s comes back when it reads or stops answering\n",
		"idle bound       3s after the last packet, once the peer has read everything\n",
		"in-flight bound  3s and up to 1s after the last packet, once the peer stops answering",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q, explained as\n%s", want, out)
		}
	}
	metrics := a.get(t, "/metrics")
	wantMetric(t, metrics, `sockhealth_sockets_guarded{policy="slow"} 1`)
	wantMetric(t, metrics, `sockhealth_guards_total{policy="slow"} 1`)

	a.kill(t)
	left := labtest.Options(t, c).UserTimeout
	if left < 10*guardTimeout || left > 20*time.Minute {
		t.Errorf("after a kill: user timeout %s", left)
	}
	a.start(t)
	a.awaitPeer(t, "slow", "is guarded by the next agent", func(p *api.PolicyStatus) bool { return p.Guarded == 1 })
	go io.Copy(io.Discard, peer)
	a.awaitPeer(t, "slow", "reads again", func(p *api.PolicyStatus) bool { return p.Guarded == 0 })
	if got := labtest.Options(t, c).UserTimeout; got != guardTimeout || !established(t, c) {
		t.Errorf("reads again: user timeout %s, established %t", got, established(t, c))
	}
}

// TestGuardDetach: when the programs come off a peer that reads by now has its own user
// timeout, and with --restore one that still does not has its application's.
func TestGuardDetach(t *testing.T) {
	loadertest.Need(t, loadertest.Load(t), kernel.Guard)
	const own = 6 * time.Second
	for name, flags := range map[string][]string{"keep": nil, "restore": {"--restore"}} {
		t.Run(name, func(t *testing.T) {
			a := newPinned(t)
			a.write(t, guardPolicy)
			a.start(t)
			reads, peer := a.slowPair(t)
			shut, _ := a.slowPair(t)
			labtest.Setsockopt(t, shut, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(own/time.Millisecond))
			a.awaitPeer(t, "slow", "are guarded", func(p *api.PolicyStatus) bool { return p.Guarded == 2 })
			a.kill(t)
			go io.Copy(io.Discard, peer)
			labtest.Eventually(t, time.Minute, func() bool {
				info := labtest.TCPInfo(t, reads) // where the window is shut nothing is in flight
				return info.Unacked == 0 && info.Notsent_bytes == 0
			}, "all is read")
			began := time.Now()
			a.detach(t, flags...)
			got, want := labtest.Options(t, reads).UserTimeout, guardTimeout
			if flags != nil {
				want = 0
			}
			if got != want || !established(t, reads) {
				t.Errorf("reads: user timeout %s, want %s", got, want)
			}
			got = labtest.Options(t, shut).UserTimeout
			if least := 10 * guardTimeout; flags == nil && got < least || flags != nil && (got < own || got > own+time.Minute+time.Since(began)) {
				t.Errorf("shut: user timeout %s", got)
			}
		})
	}
}

// TestRTOCapTold: what this kernel cannot give is told at the start, by status and by
// policy check; where it can nothing is.
func TestRTOCapTold(t *testing.T) {
	const needs = "needs Linux 6.15"
	has := expected(t, []kernel.Feature{kernel.RTOCap})[kernel.RTOCap.String()]
	a := newRunAgent(t)
	a.write(t, "version: 1\npeers:\n  - {name: capped, cidrs: [10.91.2.0/24], in_flight: rto_cap}\n  - {name: auto, cidrs: [10.91.3.0/24], in_flight: auto}\n")
	a.start(t)
	told := map[string]string{"status": strings.Join(a.status(t).Problems, "\n")}
	_, told["policy check"], _ = a.output(t, a.ns, "policy", "check", "policy.yaml")
	a.mu.Lock()
	for _, line := range a.log {
		if msg, ok := line["msg"].(string); ok && line["level"] == "WARN" {
			told["log"] += msg + "\n"
		}
	}
	a.mu.Unlock()
	for by, named := range map[string]string{"status": ": capped [", "policy check": `of "capped" ` + needs, "log": ": capped ["} {
		text := told[by]
		if strings.Contains(text, needs) == has || !has && !strings.Contains(text, named) { // and not the other
			t.Errorf("%s says %q", by, text)
		}
	}
	out, _, _ := a.output(t, a.ns, "policy", "explain", "--policy", "policy.yaml", "--direction", "outbound", "10.91.2.2:80")
	want := "rto_cap: user_timeout, since this kernel has no TCP_RTO_MAX_MS"
	if has {
		want = "rto_cap: 15 retransmissions (net.ipv4.tcp_retries2, of this network namespace), at most 1 s apart"
	}
	if !strings.Contains(out, want) {
		t.Errorf("explained as\n%s\nwant %s", out, want)
	}
	a.testRTOCapListed(t, has)
}

// testRTOCapListed: a connection's bound is reckoned by the retransmissions that its own
// namespace allows, and the kernel keeps to it. Without TCP_RTO_MAX_MS they do not count.
func (a *runAgent) testRTOCapListed(t *testing.T, has bool) {
	labtest.Enter(t, a.cgroup)
	c, peer := labtest.Pair(t, a.Lab, 0)
	err := a.Client.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/tcp_retries2", []byte("6"), 0) })
	if err != nil {
		t.Fatal(err)
	}
	want := 15200 * time.Millisecond // by the user timeout
	if has {
		want = 6400 * time.Millisecond // 0.2, 0.4 and 0.8 s, then a second each until 5.4 s after the first
	}
	list := decoded[api.Sockets](t, a, a.ns, "sockets", "--run-dir", "run", "-o", "json")
	if len(list.Sockets) != 1 || list.Sockets[0].InFlightBoundMS != want.Milliseconds() {
		t.Errorf("listed %+v, want an in-flight bound of %s", list, want)
	}
	out, _, _ := a.output(t, a.ns, "sockets", "explain", "--run-dir", "run", c.LocalAddr().String())
	if !strings.Contains(out, "in-flight bound  "+ms(want.Milliseconds())) {
		t.Errorf("explained as\n%s\nwant an in-flight bound of %s", out, want)
	}
	if !has {
		return
	}
	labtest.Fault(t)(a.DropPort(labtest.Addr(peer.LocalAddr()).Port()))
	began := time.Now()
	if _, err := c.Write([]byte("ping")); err != nil {
		t.Fatal(err)
	}
	_, err = c.Read(make([]byte, 1))
	// Uncapped it is 25.4 s; a tail loss probe counts, too.
	sent := labtest.TCPInfo(t, c).Total_retrans
	if took := time.Since(began); !errors.Is(err, unix.ETIMEDOUT) || took < want-time.Second || took > 3*want || sent > 10 {
		t.Errorf("ended with %v after %s and %d retransmissions, want ETIMEDOUT after %s, and not after 15", err, took, sent, want)
	}
}
