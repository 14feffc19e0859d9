// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/api"
	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
)

// policyOf is a policy file with one entry of these values.
func policyOf(name string, userTimeout time.Duration) string {
	return fmt.Sprintf(`version: 1
peers:
  - {name: %s, cidrs: [10.91.0.0/16], ports: [%d], user_timeout: %s}
`, name, managedPort, userTimeout)
}

const badPolicy = `version: 1
peers:
  - {name: buffer, cidrs: [10.91.0.1/16], prots: [80]}
`

func TestReload(t *testing.T) {
	a := newRunAgent(t)
	labtest.Enter(t, a.cgroup)
	a.write(t, policyOf("buffer", 16*time.Second)+
		"  - {name: old, cidrs: [10.91.0.0/16], ports: [7300]}\n")
	a.start(t)
	before, _ := a.pair(t)
	a.wantUserTimeout(t, before, 16*time.Second)
	wantMetric(t, a.get(t, "/metrics"), `sockhealth_sockets{policy="old"} 0`)

	t.Run("change", func(t *testing.T) {
		a.write(t, policyOf("buffer", 17*time.Second))
		a.awaitUserTimeout(t, 17*time.Second)
		if !expected(t, []kernel.Feature{kernel.Adopt})[kernel.Adopt.String()] {
			a.wantUserTimeout(t, before, 16*time.Second) // what is open stays as it is
			return
		}
		labtest.Eventually(t, 10*time.Second, func() bool { return labtest.Options(t, before).UserTimeout == 17*time.Second },
			"the connection that is open to be brought in line")
	})
	t.Run("series", func(t *testing.T) {
		metrics := a.get(t, "/metrics")
		if strings.Contains(metrics, `policy="old"`) {
			t.Error("series of a policy that is gone are left")
		}
		opened := fmt.Sprintf(`sockhealth_connections_opened_total{direction="outbound",policy="buffer"} %d`, a.opened)
		wantMetric(t, metrics, opened) // the first one too
	})
	t.Run("new name", a.testNewName)
	t.Run("hangup", func(t *testing.T) {
		a.write(t, policyOf("buffer", 18*time.Second))
		a.signal(t, syscall.SIGHUP)
		a.awaitUserTimeout(t, 18*time.Second)
		labtest.Eventually(t, 10*time.Second, func() bool { return a.reloadedBy("SIGHUP") }, "a reload by SIGHUP")
	})
	t.Run("refused", a.testRefused)
	t.Run("unreadable", a.testUnreadable)
	t.Run("asked for", a.testReloadAsked)
	// The first connection is judged by the entry that has its name now.
	if r := a.report(t, before, "0s"); r.Verdict != "alive_slow" || r.Policy != "buffer" {
		t.Errorf("got %+v", r)
	}
	if code := a.terminate(t); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

// testReloadAsked: a reload by command, which says what is in force.
func (a *runAgent) testReloadAsked(t *testing.T) {
	a.write(t, policyOf("buffer", 19*time.Second))
	r := decoded[api.Reloaded](t, a, a.ns, "reload", "--run-dir", "run", "-o", "json")
	if r.Schema != 1 || r.File != "policy.yaml" || r.Error != "" || time.Since(r.Loaded) > time.Minute {
		t.Errorf("got %+v", r)
	}
	c, _ := a.pair(t)
	a.wantUserTimeout(t, c, 19*time.Second)
	if s := a.status(t); s.Health != "ok" || s.Policy.Revision != r.Revision || s.Policy.Error != "" {
		t.Errorf("status: %+v", s)
	}
	wantMetric(t, a.get(t, "/metrics"), "sockhealth_policy_last_reload_success 1")
	if again := decoded[api.Reloaded](t, a, a.ns, "reload", "--run-dir", "run", "-o", "json"); !again.Loaded.Equal(r.Loaded) {
		t.Errorf("the same file again: in force since %v, before %v", again.Loaded, r.Loaded)
	}
	stdout, stderr, code := a.output(t, a.ns, "reload", "--run-dir", "run")
	if code != exitOK || stderr != "" || !strings.HasPrefix(stdout, "policy.yaml: revision "+r.Revision+" is in force since ") {
		t.Errorf("exit code %d, %q, %q", code, stderr, stdout)
	}
}

// pair opens a connection that the policy names, and counts it.
func (a *runAgent) pair(t *testing.T) (client, server *net.TCPConn) {
	t.Helper()
	a.opened++
	return labtest.Pair(t, a.Lab, managedPort)
}

// reloadedBy reports whether the log has a reload for that reason.
func (a *runAgent) reloadedBy(why string) bool {
	for _, msg := range []string{"policy in force", "policy unchanged"} {
		for _, l := range a.logged(msg) {
			if l["why"] == why {
				return true
			}
		}
	}
	return false
}

func (a *runAgent) wantUserTimeout(t *testing.T, c *net.TCPConn, want time.Duration) {
	t.Helper()
	if o := labtest.Options(t, c); !o.KeepAlive || o.Idle != 5*time.Second || o.UserTimeout != want {
		t.Errorf("a connection has %+v, want a user timeout of %s", o, want)
	}
}

// awaitUserTimeout opens connections until one has the value.
func (a *runAgent) awaitUserTimeout(t *testing.T, want time.Duration) {
	t.Helper()
	labtest.Eventually(t, 10*time.Second, func() bool {
		c, server := a.pair(t)
		defer server.Close()
		defer c.Close()
		return labtest.Options(t, c).UserTimeout == want
	}, "the new policy in force")
}

// testNewName: a connection that has got a policy of a new name is known by it at
// once.
func (a *runAgent) testNewName(t *testing.T) {
	for i := range 5 {
		name := fmt.Sprintf("new%d", i)
		a.write(t, policyOf(name, time.Duration(30+i)*time.Second))
		var c *net.TCPConn
		labtest.Eventually(t, 10*time.Second, func() bool {
			c, _ = labtest.Pair(t, a.Lab, managedPort)
			return labtest.Options(t, c).UserTimeout == time.Duration(30+i)*time.Second
		}, "the new policy in force")
		x, err := api.Dial(a.path("run")).Explain(t.Context(), conn.ID{
			Local: labtest.Addr(c.LocalAddr()), Remote: labtest.Addr(c.RemoteAddr()),
		})
		if err != nil {
			t.Fatal(err)
		}
		if x.Unmanaged != "" || x.Socket.Policy != name {
			t.Errorf("a connection of policy %s: unmanaged %q, policy %q", name, x.Unmanaged, x.Socket.Policy)
		}
	}
}

// testRefused: a bad file changes nothing, however it is read, and everybody is
// told every mistake.
func (a *runAgent) testRefused(t *testing.T) {
	revision := a.status(t).Policy.Revision
	a.write(t, badPolicy)
	_, stderr, code := a.output(t, a.ns, "reload", "--run-dir", "run")
	want := `policy.yaml:3:28: cidr 10.91.0.1/16 has host bits set: write 10.91.0.0/16
policy.yaml:3:43: unknown key "prots": write ports
`
	if code != exitFailed || stderr != want {
		t.Errorf("exit code %d, said %q, want %q", code, stderr, want)
	}
	labtest.Eventually(t, 10*time.Second, func() bool {
		for _, l := range a.logged("policy refused, the old one stays") {
			if l["why"] == "change" {
				return true
			}
		}
		return false
	}, "the change refused, too")
	c, _ := a.pair(t)
	a.wantUserTimeout(t, c, 18*time.Second)
	s := a.status(t)
	if s.Health != "degraded" || s.Policy.Revision != revision || s.Policy.Error != strings.TrimSuffix(want, "\n") {
		t.Errorf("status: %+v", s)
	}
	stdout, _, _ := a.output(t, a.ns, "status", "--run-dir", "run")
	for _, w := range []string{
		"health       degraded\n",
		"problem      the policy file as it is now was refused, the older one stays:\n",
		"             policy.yaml:3:43: unknown key",
	} {
		if !strings.Contains(stdout, w) {
			t.Errorf("status has no %q:\n%s", w, stdout)
		}
	}
	wantMetric(t, a.get(t, "/metrics"), "sockhealth_policy_last_reload_success 0")
}

// testUnreadable: without a file the policy stays just the same.
func (a *runAgent) testUnreadable(t *testing.T) {
	if err := syscall.Unlink(a.path("policy.yaml")); err != nil {
		t.Fatal(err)
	}
	_, stderr, code := a.output(t, a.ns, "reload", "--run-dir", "run")
	if code != exitFailed || stderr != "sockhealth: read policy: open policy.yaml: no such file or directory\n" {
		t.Errorf("exit code %d, said %q", code, stderr)
	}
	c, _ := a.pair(t)
	a.wantUserTimeout(t, c, 18*time.Second)
}

// While two policies take turns, each connection gets the whole of one of them,
// on both of its ends, and each is counted.
func TestReloadUnderLoad(t *testing.T) {
	const openers = 3
	reloads := max(labtest.Fewer(20), 4) // each of the policies twice
	least := 15 * reloads
	policies := [2]conn.Options{
		{KeepAlive: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 5, UserTimeout: 15 * time.Second},
		{KeepAlive: true, Idle: 7 * time.Second, Interval: 3 * time.Second, Count: 4, UserTimeout: 21 * time.Second},
	}
	a := newRunAgent(t)
	labtest.Enter(t, a.cgroup)
	a.write(t, policyWith(policies[0]))
	a.start(t)
	l := &load{
		from: labtest.Dialer{NS: a.Client}, seen: make(map[conn.Options]int),
		to: labtest.Listen(t, a.Server, netip.AddrPortFrom(a.ServerAddr4, managedPort)),
	}
	var stop atomic.Bool
	var work sync.WaitGroup
	for range openers {
		work.Go(func() {
			for !stop.Load() && l.open() {
			}
		})
	}
	admin := api.Dial(a.path("run"))
	for i := range reloads {
		// Each amid the load, whatever either takes.
		l.await(t, i*least/reloads)
		a.write(t, policyWith(policies[(i+1)%2]))
		if _, err := admin.Reload(t.Context()); err != nil {
			t.Error(err)
			break
		}
	}
	l.await(t, least)
	stop.Store(true)
	work.Wait()
	l.judge(t, policies)
	metrics := a.get(t, "/metrics")
	for _, direction := range []string{"outbound", "inbound"} {
		wantMetric(t, metrics, fmt.Sprintf(`sockhealth_connections_opened_total{direction=%q,policy="buffer"} %d`, direction, l.opened))
	}
	if s := a.status(t); s.Health != "ok" || len(s.Faults) != 0 {
		t.Errorf("status: %+v", s)
	}
	if code := a.terminate(t); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

// policyWith is a policy file that gives these options, to either end.
func policyWith(o conn.Options) string {
	return policyOf("buffer", o.UserTimeout) + fmt.Sprintf(
		"defaults: {user_timeout: %s, keepalive: {idle: %s, interval: %s, count: %d}}\n", o.UserTimeout, o.Idle, o.Interval, o.Count)
}

// load opens connections and counts what their ends have.
type load struct {
	from labtest.Dialer
	to   *net.TCPListener

	mu     sync.Mutex
	opened int
	seen   map[conn.Options]int
	errs   []error
}

// open opens a connection, looks at the ends of it, or at one of another that is
// opened at the same time, and closes them. It reports false after an error.
func (l *load) open() bool {
	client, err := l.from.Try(labtest.Addr(l.to.Addr()))
	if err != nil {
		return l.add(nil, err)
	}
	defer client.Close()
	server, err := l.to.AcceptTCP()
	if err != nil {
		return l.add(nil, err)
	}
	defer server.Close()
	var ends [2]conn.Options
	for i, c := range []*net.TCPConn{client, server} {
		if ends[i], err = optionsOf(c); err != nil {
			return l.add(nil, err)
		}
	}
	return l.add(ends[:], nil)
}

func (l *load) add(ends []conn.Options, err error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.errs = append(l.errs, err)
		return false
	}
	l.opened++
	for _, o := range ends {
		l.seen[o]++
	}
	return true
}

// await waits until that many connections were opened.
func (l *load) await(t *testing.T, n int) {
	t.Helper()
	labtest.Eventually(t, time.Minute, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.opened >= n || len(l.errs) > 0
	}, "connections opened")
}

// judge fails the test where an end has neither policy, or one was rarely met.
func (l *load) judge(t *testing.T, policies [2]conn.Options) {
	t.Helper()
	for _, err := range l.errs {
		t.Error(err)
	}
	for o, n := range l.seen {
		if o != policies[0] && o != policies[1] && !onTheWay(t, o, policies) {
			t.Errorf("%d ends of connections have %+v, which is neither policy", n, o)
		}
	}
	for _, o := range policies {
		if n := l.seen[o]; n < l.opened/10 {
			t.Errorf("only %d ends of %d connections have %+v: the reloads and the load did not meet", n, l.opened, o)
		}
	}
	t.Logf("%d connections", l.opened)
}

// onTheWay reports whether a connection is being brought from one policy to the
// other, option by option, where the kernel lets it be.
func onTheWay(t *testing.T, o conn.Options, policies [2]conn.Options) bool {
	t.Helper()
	if !expected(t, []kernel.Feature{kernel.Adopt})[kernel.Adopt.String()] {
		return false
	}
	p, q := policies[0], policies[1]
	return o.KeepAlive && (o.Idle == p.Idle || o.Idle == q.Idle) && (o.Interval == p.Interval || o.Interval == q.Interval) &&
		(o.Count == p.Count || o.Count == q.Count) && (o.UserTimeout == p.UserTimeout || o.UserTimeout == q.UserTimeout)
}

// optionsOf is labtest.Options for any goroutine.
func optionsOf(c *net.TCPConn) (o conn.Options, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return o, err
	}
	ctlErr := raw.Control(func(fd uintptr) {
		get := func(level, option int) int {
			n, one := unix.GetsockoptInt(int(fd), level, option)
			err = errors.Join(err, one)
			return n
		}
		o = conn.Options{
			KeepAlive:   get(unix.SOL_SOCKET, unix.SO_KEEPALIVE) != 0,
			Idle:        time.Duration(get(unix.IPPROTO_TCP, unix.TCP_KEEPIDLE)) * time.Second,
			Interval:    time.Duration(get(unix.IPPROTO_TCP, unix.TCP_KEEPINTVL)) * time.Second,
			Count:       get(unix.IPPROTO_TCP, unix.TCP_KEEPCNT),
			UserTimeout: time.Duration(get(unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)) * time.Millisecond,
		}
	})
	return o, errors.Join(err, ctlErr)
}
