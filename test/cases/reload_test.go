// SPDX-License-Identifier: Apache-2.0

package cases

import (
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
)

// Two policies that say other things of the same connections: shorter, longer,
// under another name, no more, and for the first time.
const (
	beforePolicy = `version: 1
defaults: {direction: outbound}
peers:
  - {name: shorter, cidrs: [10.91.2.0/24], ports: [7100]}
  - {name: longer, cidrs: [10.91.2.0/24], ports: [7101]}
  - {name: gone, cidrs: [10.91.2.0/24], ports: [7102]}
`
	afterPolicy = `version: 1
defaults: {direction: outbound}
peers:
  - {name: shorter, cidrs: [10.91.2.0/24], ports: [7100], user_timeout: 8s, keepalive: {idle: 3s, interval: 1s, count: 4}}
  - {name: renamed, cidrs: [10.91.2.0/24], ports: [7101], user_timeout: 21s, keepalive: {idle: 7s, interval: 3s, count: 4}}
  - {name: came, cidrs: [10.91.2.0/24], ports: [7103]}
`
	badPolicy = `version: 1
peers:
  - {name: shorter, cidrs: [10.91.2.1/24], ports: [7100]}
`
)

// What the policies give, by port; zero where none names it.
var (
	givenBefore = []conn.Options{policed, policed, policed, {}}
	givenAfter  = []conn.Options{
		{KeepAlive: true, Idle: 3 * time.Second, Interval: time.Second, Count: 4, UserTimeout: 8 * time.Second},
		{KeepAlive: true, Idle: 7 * time.Second, Interval: 3 * time.Second, Count: 4, UserTimeout: 21 * time.Second},
		{},
		policed,
	}
)

// asked is what applications ask for, the last word each: one of them switches
// keepalive on and off again.
var asked = []conn.Options{
	{},
	{KeepAlive: true, Idle: 15 * time.Second, Interval: 15 * time.Second, Count: 9},
	{Idle: 30 * time.Second},
	{KeepAlive: true, Idle: 10 * time.Minute, UserTimeout: 10 * time.Minute},
	{KeepAlive: true, Idle: 2 * time.Second, Interval: time.Second, Count: 4, UserTimeout: 7 * time.Second},
}

// live is one of many connections.
type live struct {
	*net.TCPConn
	far        *net.TCPConn
	port, wish int
}

// TestReloadOfMany: a policy that changes reaches every connection that is open.
// One that it names no more has back what its application last asked for, keepalive
// off included, and a bad policy in between changes nothing.
func TestReloadOfMany(t *testing.T) {
	needAdopt(t)
	n := newNode(t, 1, beforePolicy)
	labtest.Enter(t, n.cgroup)
	a := n.start(t)
	all := n.openMany(t, labtest.Fewer(1000))
	wantGiven(t, "as they opened", all, givenBefore)

	revision := n.status(t).Policy.Revision
	n.write(t, badPolicy)
	if r, err := n.admin.Reload(t.Context()); err == nil {
		t.Errorf("a bad policy is taken: %+v", r)
	}
	if s := n.status(t); s.Policy.Revision != revision || s.Policy.Error == "" {
		t.Errorf("after a bad policy: status %+v", s)
	}
	wantGiven(t, "after a bad policy", all, givenBefore)

	await(t, 4*time.Second) // silent for longer than some are to be idle now
	for _, step := range []struct {
		what, policy string
		given        []conn.Options
	}{{"after the change", afterPolicy, givenAfter}, {"after the change back", beforePolicy, givenBefore}} {
		n.bring(t, step.what, step.policy, all, step.given)
	}
	for i, c := range all {
		if _, err := c.far.Write([]byte{1}); err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		_ = c.SetReadDeadline(time.Now().Add(late))
		if _, err := c.Read(make([]byte, 1)); err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
	}
	n.wantHealthy(t)
	a.stop(t)
}

// bring puts a policy in force, and demands that all are brought in line.
func (n *node) bring(t *testing.T, what, policy string, all []*live, given []conn.Options) {
	t.Helper()
	n.write(t, policy)
	if _, err := n.admin.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for (!n.settled(t) || len(unlike(t, all, given)) > 0) && time.Since(began) < late {
		time.Sleep(10 * time.Millisecond)
	}
	wantGiven(t, what, all, given)
	t.Logf("%s: in line after %v", what, time.Since(began).Round(10*time.Millisecond))
}

// openMany opens connections to each port in turn, whose applications ask for
// something each.
func (n *node) openMany(t *testing.T, many int) (all []*live) {
	t.Helper()
	var listeners []*net.TCPListener
	for i := range givenBefore {
		listeners = append(listeners, labtest.Listen(t, n.Server, netip.AddrPortFrom(n.ServerAddr4, uint16(7100+i))))
	}
	for i := range max(many, len(asked)*len(listeners)) {
		c := &live{port: i % len(listeners), wish: i / len(listeners) % len(asked)}
		c.TCPConn = labtest.Dial(t, n.Client, netip.AddrPort{}, labtest.Addr(listeners[c.port].Addr()))
		c.far = labtest.Accept(t, listeners[c.port])
		if err := ask(c.TCPConn, asked[c.wish]); err != nil {
			t.Fatal(err)
		}
		if c.wish == 2 {
			labtest.Setsockopt(t, c.TCPConn, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
			labtest.Setsockopt(t, c.TCPConn, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 0)
		}
		all = append(all, c)
	}
	return all
}

// settled reports whether no connection waits for anything.
func (n *node) settled(t *testing.T) bool {
	t.Helper()
	for _, p := range n.status(t).Peers {
		if len(p.Pending) > 0 {
			return false
		}
	}
	return true
}

// expected is what a connection is to have.
func (c *live) expected(given []conn.Options) conn.Options {
	policy, want := given[c.port], asked[c.wish]
	if policy == (conn.Options{}) {
		return wished(want)
	}
	want.KeepAlive = true
	for _, one := range []struct {
		own    *time.Duration
		policy time.Duration
	}{{&want.Idle, policy.Idle}, {&want.Interval, policy.Interval}, {&want.UserTimeout, policy.UserTimeout}} {
		if *one.own == 0 {
			*one.own = one.policy
		}
		*one.own = min(*one.own, one.policy)
	}
	if want.Count == 0 {
		want.Count = policy.Count
	}
	want.Count = min(want.Count, policy.Count)
	return want
}

// unlike lists the connections that have something else.
func unlike(t *testing.T, all []*live, given []conn.Options) (out []*live) {
	t.Helper()
	return slices.DeleteFunc(slices.Clone(all), func(c *live) bool { return labtest.Options(t, c.TCPConn) == c.expected(given) })
}

// wantGiven: each has what it is to have.
func wantGiven(t *testing.T, what string, all []*live, given []conn.Options) {
	t.Helper()
	wrong := unlike(t, all, given)
	for _, c := range wrong[:min(len(wrong), 5)] {
		t.Errorf("%s: of port %d, wish %d: %+v, want %+v", what, 7100+c.port, c.wish, labtest.Options(t, c.TCPConn), c.expected(given))
	}
	if len(wrong) > 0 {
		t.Fatalf("%s: %d of %d connections are not in line", what, len(wrong), len(all))
	}
}
