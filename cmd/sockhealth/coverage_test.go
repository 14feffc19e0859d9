// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/api"
	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
)

// coverageLate is how long what a scan is to find may take: it rests for nineteen
// times its CPU, which is much on an emulated machine.
const coverageLate = 90 * time.Second

const coveragePolicy = `version: 1
defaults: {direction: outbound}
peers:
  - {name: adopted, cidrs: [10.91.2.0/24], ports: [7101]}
  - {name: left, cidrs: [10.91.2.0/24], ports: [7102], existing: ignore}
  - {name: silent, cidrs: [10.91.2.0/24], ports: [7103]}
  - {name: drifted, cidrs: [10.91.2.0/24], ports: [7104]}
  - {name: multipath, cidrs: [10.91.2.0/24], ports: [7105]}
`

// startChecked starts an agent that checks its coverage all the time.
func (a *runAgent) startChecked(t *testing.T) {
	t.Helper()
	a.more = append(a.more, "--scan-interval", "1s")
	a.start(t)
}

// peer is the totals of one policy.
func (a *runAgent) peer(t *testing.T, name string) api.PolicyStatus {
	t.Helper()
	for _, p := range a.status(t).Peers {
		if p.Name == name {
			return p
		}
	}
	t.Fatalf("no policy %q", name)
	return api.PolicyStatus{}
}

// awaitPeer waits until the status of a policy is as wanted.
func (a *runAgent) awaitPeer(t *testing.T, name, what string, is func(*api.PolicyStatus) bool) {
	t.Helper()
	a.awaitPeerFor(t, coverageLate, name, what, is)
}

// awaitPeerFor is awaitPeer for what takes so long at most.
func (a *runAgent) awaitPeerFor(t *testing.T, limit time.Duration, name, what string, is func(*api.PolicyStatus) bool) {
	t.Helper()
	var p api.PolicyStatus
	defer func() {
		if t.Failed() {
			t.Logf("%s: %+v", name, p)
		}
	}()
	labtest.Eventually(t, limit, func() bool {
		p = a.peer(t, name)
		return is(&p)
	}, name+": "+what)
}

// unmanaged lists what is not bounded, by local address.
func (a *runAgent) unmanaged(t *testing.T) map[string]api.UnmanagedSocket {
	t.Helper()
	list := decoded[api.Unmanaged](t, a, a.ns, "sockets", "--unmanaged", "--run-dir", "run", "-o", "json")
	if list.Schema != 1 || list.Incomplete != "" {
		t.Errorf("got %+v", list)
	}
	out := make(map[string]api.UnmanagedSocket)
	for _, s := range list.Sockets {
		out[s.Local] = s
	}
	return out
}

// TestCoverage: connections that are not bounded are told, each with its reason,
// by status, list and metrics; those that are brought in line are told no more.
func TestCoverage(t *testing.T) {
	a := newRunAgent(t)
	a.write(t, coveragePolicy)
	adopts := expected(t, []kernel.Feature{kernel.Adopt})[kernel.Adopt.String()]
	older, _ := labtest.Pair(t, a.Lab, 7101)
	var left *net.TCPConn
	if err := a.cgroup.Enter(); err != nil { // else it would be one outside
		t.Fatal(err)
	}
	left, _ = labtest.Pair(t, a.Lab, 7102)
	if err := a.cgroup.Leave(); err != nil {
		t.Fatal(err)
	}
	silent, fault := a.silentPair(t, 7103)
	a.startChecked(t)
	outside, _ := labtest.Pair(t, a.Lab, 7102)

	a.awaitPeer(t, "left", "both are found", func(p *api.PolicyStatus) bool {
		return p.Expected == 2 && p.Bounded == 0 && p.Unmanaged["ignored"] == 1 && p.Unmanaged["not_in_cgroup"] == 1
	})
	list := a.unmanaged(t)
	for c, want := range map[*net.TCPConn]string{left: "ignored", outside: "not_in_cgroup"} {
		s := list[c.LocalAddr().String()]
		if s.Reason != want || s.Policy != "left" || s.Direction != "outbound" || s.Peer != c.RemoteAddr().String() ||
			s.Cookie != labtest.Cookie(t, c) || s.Netns != a.Client.Inode() {
			t.Errorf("got %+v, want %s", s, want)
		}
	}
	stdout, _, _ := a.output(t, a.ns, "sockets", "--unmanaged", "--run-dir", "run", "-o", "wide")
	for _, want := range []string{"REASON ", " ignored ", " not_in_cgroup ", "  -\n"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("the list has no %q:\n%s", want, stdout)
		}
	}
	wantMetric(t, a.get(t, "/metrics"), `sockhealth_sockets_unmanaged{policy="left",reason="ignored"} 1`)
	ignored := []string{"leaves such alone (existing: ignore)\n", "[write existing: adopt, or have its application connect anew]\n"}
	explained := map[*net.TCPConn][]string{
		left: ignored,
		outside: {"made outside the agent's cgroup", "[write existing: adopt, or start the agent with a --cgroup that its process is in, too (now " +
			a.cgroup.Path + "), or move the process there, and have it connect anew]\n"},
	}
	if !expected(t, []kernel.Feature{kernel.SocketCgroup})[kernel.SocketCgroup.String()] {
		explained[outside] = ignored // a socket does not tell its cgroup there
	}
	for c, want := range explained {
		stdout, _, _ := a.output(t, a.ns, "sockets", "explain", "--run-dir", "run", c.LocalAddr().String())
		for _, text := range want {
			if !strings.Contains(stdout, text) {
				t.Errorf("explain has no %q:\n%s", text, stdout)
			}
		}
	}
	if adopts {
		a.testCoverageAdopted(t, older, silent, fault)
	} else {
		a.awaitPeer(t, "adopted", "the older one is found", func(p *api.PolicyStatus) bool { return p.Unmanaged["not_in_cgroup"] == 1 })
	}
	t.Run("multipath", a.testCoverageMultipath)
}

// testCoverageAdopted: what adoption brings in line, at once or later.
func (a *runAgent) testCoverageAdopted(t *testing.T, older, silent *net.TCPConn, fault *lab.Fault) {
	a.awaitPeer(t, "adopted", "all are bounded", func(p *api.PolicyStatus) bool {
		return p.Expected == 1 && p.Bounded == 1 && p.Adopted == 1
	})
	stdout := a.explain(t, older)
	for _, want := range []string{"direction outbound (inferred from the listeners)", "adopted "} {
		if !strings.Contains(stdout, want) {
			t.Errorf("explain has no %q:\n%s", want, stdout)
		}
	}
	a.awaitPeer(t, "silent", "it is pending", func(p *api.PolicyStatus) bool {
		return p.Unmanaged["pending"] == 1 && p.Pending["stuck"] == 1
	})
	if s := a.unmanaged(t)[silent.LocalAddr().String()]; s.Reason != "pending" {
		t.Errorf("got %+v", s)
	}
	if stdout := a.explain(t, silent); !strings.Contains(stdout, "not all of its options are set yet") {
		t.Errorf("explain:\n%s", stdout)
	}
	metrics := a.get(t, "/metrics")
	wantMetric(t, metrics, `sockhealth_coverage_ratio{policy="silent"} 0`)
	wantMetric(t, metrics, `sockhealth_coverage_ratio{policy="adopted"} 1`)
	wantMetric(t, metrics, `sockhealth_sockets_pending{policy="silent",wait="stuck"} 1`)
	wantMetric(t, metrics, `sockhealth_connections_adopted_total{policy="adopted"} 1`)
	stdout, _, _ = a.output(t, a.ns, "status", "--run-dir", "run")
	for _, want := range []string{"% of 4 connections bounded as the policy wants, in 1 namespaces", "canary       ok, ", " 0.0% ", " 100% "} {
		if !strings.Contains(stdout, want) {
			t.Errorf("status has no %q:\n%s", want, stdout)
		}
	}
	if s := a.status(t); s.Health != api.HealthOK {
		t.Errorf("problems %q", s.Problems)
	}
	labtest.Heal(t, fault)
	// The next retransmission may be as far away as the outage was long, 2 minutes at most.
	a.awaitPeerFor(t, 3*coverageLate, "silent", "it was heard", func(p *api.PolicyStatus) bool { return p.Bounded == 1 })
}

// silentPair is a connection whose peer does not answer.
func (a *runAgent) silentPair(t *testing.T, port uint16) (*net.TCPConn, *lab.Fault) {
	t.Helper()
	c, _ := labtest.Pair(t, a.Lab, port)
	fault := labtest.Fault(t)(a.DropPort(port))
	if _, err := c.Write([]byte("anybody there?")); err != nil {
		t.Fatal(err)
	}
	labtest.Eventually(t, 20*time.Second, func() bool { return labtest.TCPInfo(t, c).Retransmits > 0 }, "a retransmission")
	return c, fault
}

// testCoverageMultipath: not ours to touch, and told.
func (a *runAgent) testCoverageMultipath(t *testing.T) {
	ln := labtest.ListenMultipath(t, a.Server, netip.AddrPortFrom(a.ServerAddr4, 7105))
	c := labtest.DialMultipath(t, a.Client, labtest.Addr(ln.Addr()))
	a.awaitPeer(t, "multipath", "it is found", func(p *api.PolicyStatus) bool { return p.Unmanaged["mptcp"] == 1 && p.Bounded == 0 })
	if s := a.unmanaged(t)[c.LocalAddr().String()]; s.Reason != "mptcp" || s.Policy != "multipath" {
		t.Errorf("got %+v", s)
	}
	if stdout, _, _ := a.output(t, a.ns, "sockets", "explain", "--run-dir", "run", c.LocalAddr().String()); !strings.Contains(stdout, "a subflow of Multipath TCP is not ours to touch") {
		t.Errorf("explain does not say why:\n%s", stdout)
	}
	// Without adoption others are not bounded for long.
	if s := a.status(t); expected(t, []kernel.Feature{kernel.Adopt})[kernel.Adopt.String()] && s.Health != api.HealthOK {
		t.Errorf("what is not ours to touch is a problem: %q", s.Problems)
	}
}

// TestCanaryFails: programs that were taken off by force are told at once, by
// status, metric and log; and so is what happens to connections meanwhile.
func TestCanaryFails(t *testing.T) {
	a := newRunAgent(t)
	a.write(t, coveragePolicy)
	a.startChecked(t)
	var s api.Status
	labtest.Eventually(t, coverageLate, func() bool {
		s = a.status(t)
		return s.Coverage.Canary != api.CanaryUnknown
	}, "the first canary")
	if s.Coverage.Canary != api.CanaryOK || s.Coverage.CanarySent == nil {
		t.Fatalf("status: %+v", s.Coverage)
	}
	if err := a.cgroup.Enter(); err != nil {
		t.Fatal(err)
	}
	drifted, _ := labtest.Pair(t, a.Lab, 7104)
	if err := a.cgroup.Leave(); err != nil {
		t.Fatal(err)
	}
	loadertest.Unlink(t, a.cgroup, ebpf.AttachCGroupSetsockopt)
	labtest.Setsockopt(t, drifted, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 0)
	labtest.Eventually(t, coverageLate, func() bool {
		s = a.status(t)
		return s.Coverage.Canary == api.CanaryFailed
	}, "a canary that fails")
	if s.Health != api.HealthDegraded || !strings.Contains(fmt.Sprint(s.Problems), "the canary connection was not bounded") ||
		!strings.Contains(s.Coverage.CanaryError, "setsockopt did not hold the bound") {
		t.Errorf("problems %q, coverage %+v", s.Problems, s.Coverage)
	}
	wantMetric(t, a.get(t, "/metrics"), `sockhealth_canary_success 0`)
	if got := a.awaitLogged(t, "the canary connection was not bounded", 1); len(got) != 1 || got[0]["level"] != "ERROR" {
		t.Errorf("logged %v", got)
	}
	a.awaitPeer(t, "drifted", "the drift is found", func(p *api.PolicyStatus) bool { return p.DriftFound+p.DriftRepaired > 0 })
	if !expected(t, []kernel.Feature{kernel.Adopt})[kernel.Adopt.String()] {
		return
	}
	a.awaitPeer(t, "drifted", "it is repaired", func(p *api.PolicyStatus) bool { return p.Bounded == 1 && p.DriftRepaired == 1 })
	if o := labtest.Options(t, drifted); o.UserTimeout != 15*time.Second {
		t.Errorf("after the repair: %+v", o)
	}
	wantMetric(t, a.get(t, "/metrics"), `sockhealth_drift_repaired_total{policy="drifted"} 1`)
	loadertest.Unlink(t, a.cgroup, ebpf.AttachCGroupSockOps)
	labtest.Eventually(t, coverageLate, func() bool {
		return strings.Contains(a.status(t).Coverage.CanaryError, "sockops did not bound an outbound connection")
	}, "a canary that is not bounded at all")
}
