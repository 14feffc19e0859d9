// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/api"
	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
	"github.com/sockhealth/sockhealth/report"
)

// service4 is what the containers' connections go to, under an address that no other
// test has: this agent acts in every network namespace.
var service4 = netip.MustParseAddrPort("10.91.2.177:7177")

// containerPolicy bounds at this user timeout.
func containerPolicy(userTimeout time.Duration) string {
	return fmt.Sprintf(`version: 1
peers:
  - name: buffer
    cidrs: [%s/32]
    ports: [%d]
    direction: outbound
    user_timeout: %s
    keepalive: {idle: %s, interval: 1s, count: 3}
    probe: {window: 1500ms, attempts: 3}
`, service4.Addr(), service4.Port(), userTimeout, userTimeout/3)
}

// containers is an agent in all network namespaces, and containers in networks of
// their own that have the same addresses.
type containers struct {
	*runAgent
	oci   *oci
	labs  [2]*lab.Lab
	boxes [2]*ociContainer
	// locals are the ends of each container's connections: the same in both.
	locals  []netip.AddrPort
	cookies [2][]uint64
}

// newContainers makes both containers with three connections each. No agent runs.
func newContainers(t *testing.T) *containers {
	labtest.Everywhere(t)
	c := &containers{oci: newOCI(t), runAgent: newRunAgent(t)}
	c.write(t, containerPolicy(time.Minute))
	c.more = []string{"--netns", "all"}
	if err := os.Mkdir(c.path("run"), 0o755); err != nil {
		t.Fatal(err)
	}
	for n := range 3 {
		c.locals = append(c.locals, netip.AddrPortFrom(c.ClientAddr4, uint16(40001+n)))
	}
	for i := range c.labs {
		c.labs[i] = labtest.New(t, lab.Options{ServerAddrs: []netip.Addr{service4.Addr()}})
		echo(t, c.labs[i])
		c.boxes[i] = c.oci.run(t, c.cgroup, c.labs[i].Client, i+1, c.path("run"))
		for _, local := range c.locals {
			told := c.boxes[i].ask(t, insideAsk{Do: "open", Local: local, Peer: service4})
			if told.Error != "" {
				t.Fatalf("open a connection in container %d: %s", i, told.Error)
			}
			c.cookies[i] = append(c.cookies[i], told.Cookie)
			c.boxes[i].works(t, local)
		}
	}
	return c
}

// echo serves the service of a lab.
func echo(t *testing.T, l *lab.Lab) {
	ln := labtest.Listen(t, l.Server, service4)
	done := make(chan struct{})
	t.Cleanup(func() { _ = ln.Close(); <-done })
	go func() {
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = c.Close() })
			go func() { _, _ = io.Copy(c, c) }()
		}
	}()
}

// listed returns the sockets of a container, by their local addresses.
func (c *containers) listed(t *testing.T, box int) map[string]api.Socket {
	t.Helper()
	out := make(map[string]api.Socket)
	for _, s := range decoded[api.Sockets](t, c.runAgent, c.ns, "sockets", "--run-dir", "run", "-o", "json").Sockets {
		if s.Netns == c.labs[box].Client.Inode() {
			out[s.Local] = s
		}
	}
	return out
}

// Real containers, older than the agent, with the same addresses: adopted, named,
// judged by reports from inside and swept, each without a trace in the other.
func TestContainers(t *testing.T) {
	needRunc(t)
	loadertest.Need(t, loadertest.Load(t), kernel.Adopt)
	c := newContainers(t)
	c.start(t)
	a, b := c.boxes[0], c.boxes[1]
	t.Run("adopted", c.testAdopted)
	t.Run("one is dead", func(t *testing.T) {
		labtest.Fault(t)(c.labs[0].Drop(lab.Between(c.locals[0], service4)))
		wantResult(t, a.report(t, insideAsk{Local: c.locals[0], Peer: service4}), "dead_path", "closed")
		if told := a.ask(t, insideAsk{Do: "read", Local: c.locals[0]}); !strings.Contains(told.Error, "connection abort") {
			t.Errorf("the application reads %q", told.Error)
		}
		wantResult(t, a.report(t, insideAsk{Local: c.locals[1], Peer: service4}), "alive_slow", "none")
		a.works(t, c.locals[1])
		a.works(t, c.locals[2]) // the sweep asked it, too
	})
	t.Run("the other's twin", func(t *testing.T) {
		wantResult(t, b.report(t, insideAsk{Local: c.locals[0], Peer: service4}), "alive_slow", "none")
		// What is gone in the one is there in the other.
		wantResult(t, a.report(t, insideAsk{Local: c.locals[0], Peer: service4}), "gone", "none")
	})
	t.Run("the other's socket", c.testOthers)
	t.Run("events", c.testEvents)
	t.Run("container ends", c.testContainerEnds)
	t.Run("younger", c.testYounger)
	if code := c.terminate(t); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

func wantResult(t *testing.T, r report.Result, verdict, action string) {
	t.Helper()
	if r.Verdict != verdict || r.Action != action {
		t.Errorf("got %s, %s, want %s, %s: %+v", r.Verdict, r.Action, verdict, action, r)
	}
}

// testAdopted: all are bounded, and listed with container and pod.
func (c *containers) testAdopted(t *testing.T) {
	for i, box := range c.boxes {
		var have map[string]api.Socket
		labtest.Eventually(t, 30*time.Second, func() bool {
			have = c.listed(t, i)
			for _, s := range have {
				if s.Options != s.Policed || s.IdleBoundMS == 0 {
					return false
				}
			}
			return len(have) == len(c.locals)
		}, "the adoption of the container's connections")
		for n, local := range c.locals {
			s := have[local.String()]
			if s.Cookie != c.cookies[i][n] || s.ContainerID != box.id || s.PodUID != box.pod || s.UID != insideUID || s.Policed.UserTimeoutMS != 60_000 {
				t.Errorf("container %d has %+v", i, s)
			}
		}
	}
	wide, _, _ := c.output(t, c.ns, "sockets", "--run-dir", "run", "-o", "wide")
	if n := strings.Count(wide, c.boxes[0].id[:12]); n != len(c.locals) || !strings.Contains(wide, c.boxes[1].pod) {
		t.Errorf("-o wide:\n%s", wide)
	}
}

// testOthers: nobody is heard about another's socket, dead as it may be. Its own
// report closes it, and the sweep its sibling.
func (c *containers) testOthers(t *testing.T) {
	a, b := c.boxes[0], c.boxes[1]
	labtest.Fault(t)(c.labs[0].DropPort(service4.Port()))
	for _, ask := range []insideAsk{
		{Cookie: c.cookies[0][1]},
		{Cookie: c.cookies[0][1], Local: c.locals[1], Peer: service4},
	} {
		wantResult(t, b.report(t, ask), "gone", "none")
	}
	if left := c.listed(t, 0); len(left) != 2 {
		t.Errorf("after the other's report %d connections are left, want 2", len(left))
	}
	wantResult(t, a.report(t, insideAsk{Local: c.locals[1], Peer: service4}), "dead_path", "closed")
	labtest.Eventually(t, 20*time.Second, func() bool { return len(c.listed(t, 0)) == 0 }, "the sweep")
	for _, local := range c.locals {
		b.works(t, local)
	}
	if left := c.listed(t, 1); len(left) != len(c.locals) {
		t.Errorf("the other container has %d connections left", len(left))
	}
}

// testEvents: each is told with its container and pod.
func (c *containers) testEvents(t *testing.T) {
	closed := make(map[string]int)
	for _, e := range c.events(t) {
		i := 0
		if e.Netns == c.labs[1].Client.Inode() {
			i = 1
		}
		if gone := e.Verdict != nil && e.Verdict.Verdict == "gone"; gone == (e.ContainerID == c.boxes[i].id && e.PodUID == c.boxes[i].pod) {
			t.Errorf("event of container %s, pod %s: %+v", c.boxes[i].id, c.boxes[i].pod, e)
		}
		if e.Verdict != nil && e.Verdict.Action == "closed" {
			closed[e.ContainerID]++
		}
	}
	if len(closed) != 1 || closed[c.boxes[0].id] != 3 {
		t.Errorf("closed by container: %v", closed)
	}
	for _, l := range c.logged("verdict") {
		if l["action"] == "closed" && (l["container_id"] != c.boxes[0].id || l["pod_uid"] != c.boxes[0].pod) {
			t.Errorf("logged %v", l)
		}
	}
	for flag, value := range map[string]string{"--pod": c.boxes[0].pod, "--container": c.boxes[0].id[:12]} {
		lines, _, _ := c.output(t, c.ns, "events", "--run-dir", "run", "--action", "closed", flag, value)
		other, _, _ := c.output(t, c.ns, "events", "--run-dir", "run", "--action", "closed", flag, "0"+value)
		if strings.Count(lines, "\n") != 3 || other != "" {
			t.Errorf("%s %s:\n%s%s", flag, value, lines, other)
		}
	}
	line, _, _ := c.output(t, c.ns, "events", "--run-dir", "run", "--verdict", "dead_path")
	if n := strings.Count(line, " container "+c.boxes[0].id[:12]+" pod "+c.boxes[0].pod); n != 3 {
		t.Errorf("events:\n%s", line)
	}
	if metrics := c.get(t, "/metrics"); strings.Contains(metrics, c.boxes[0].id) || strings.Contains(metrics, c.boxes[0].pod) {
		t.Error("a metric names a container")
	}
}

// events returns those of both containers.
func (c *containers) events(t *testing.T) (out []api.Event) {
	t.Helper()
	stdout, stderr, code := c.output(t, c.ns, "events", "--run-dir", "run", "-o", "json")
	if code != exitOK {
		t.Fatalf("events: %s", stderr)
	}
	for line := range strings.Lines(stdout) {
		var e api.Event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		if e.Netns == c.labs[0].Client.Inode() || e.Netns == c.labs[1].Client.Inode() {
			out = append(out, e)
		}
	}
	return out
}

// testContainerEnds: a container that is killed leaves connections whose bytes nobody
// acknowledges. They end by the bound, and are told with their container.
func (c *containers) testContainerEnds(t *testing.T) {
	b := c.boxes[1]
	c.write(t, containerPolicy(6*time.Second))
	labtest.Eventually(t, 30*time.Second, func() bool {
		for _, s := range c.listed(t, 1) {
			if s.Options.UserTimeoutMS != 6000 {
				return false
			}
		}
		return true
	}, "the shorter bound")
	labtest.Fault(t)(c.labs[1].DropPort(service4.Port()))
	if told := b.ask(t, insideAsk{Do: "write", Local: c.locals[0]}); told.Error != "" {
		t.Fatal(told.Error)
	}
	b.kill(t, c.cgroup)
	var end api.Event
	labtest.Eventually(t, 60*time.Second, func() bool {
		for _, e := range c.events(t) {
			if e.Cookie == c.cookies[1][0] && e.Kind == "end" {
				end = e
				return true
			}
		}
		return false
	}, "the end of a connection of the container that is gone")
	if end.End.Cause != "in_flight_bound" || end.ContainerID != b.id || end.PodUID != b.pod {
		t.Errorf("event %+v, %+v", end, end.End)
	}
}

// testYounger: a container that has just come is judged at once, by way of the report
// directory, which is all that it sees.
func (c *containers) testYounger(t *testing.T) {
	l := labtest.New(t, lab.Options{ServerAddrs: []netip.Addr{service4.Addr()}})
	echo(t, l)
	box := c.oci.run(t, c.cgroup, l.Client, len(c.boxes)+1, c.path("run/"+api.ReportDir))
	if told := box.ask(t, insideAsk{Do: "open", Local: c.locals[0], Peer: service4}); told.Error != "" {
		t.Fatal(told.Error)
	}
	box.works(t, c.locals[0])
	labtest.Fault(t)(l.DropPort(service4.Port()))
	wantResult(t, box.report(t, insideAsk{Local: c.locals[0], Peer: service4}), "dead_path", "closed")
}
