// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/api"
	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
)

// TestStopDuringJudgement: who waits for a verdict is told that none comes, and
// the stop does not wait for the window. A namespace that is named twice is acted in once.
func TestStopDuringJudgement(t *testing.T) {
	a := newRunAgent(t)
	a.write(t, strings.Replace(runPolicy, "window: 1500ms", "window: 1m", 1))
	path := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), a.Client.FD())
	a.more = []string{"--netns", path + "," + path} // which is one namespace
	labtest.Enter(t, a.cgroup)
	a.start(t)
	client, _ := labtest.PairTo(t, labtest.Dialer{NS: a.Client}, a.Server, netip.AddrPortFrom(a.ServerAddr4, managedPort))
	list := decoded[struct{ Sockets []api.Socket }](t, a, a.ns, "sockets", "--run-dir", "run", "-o", "json")
	if len(list.Sockets) != 1 {
		t.Errorf("%d sockets of a namespace that is named twice, want 1", len(list.Sockets))
	}
	labtest.Fault(t)(a.DropPort(managedPort))
	type outcome struct {
		stderr string
		code   int
	}
	reported := make(chan outcome, 1)
	go func() {
		_, stderr, code := a.output(t, a.Client, "report", "--run-dir", "run", "--elapsed", "0s",
			"--local", client.LocalAddr().String(), "--peer", client.RemoteAddr().String())
		reported <- outcome{stderr, code}
	}()
	labtest.Eventually(t, 30*time.Second, func() bool { return a.status(t).Judgements == 1 }, "the judgement")
	began := time.Now()
	if code := a.terminate(t); code != exitOK {
		t.Errorf("the agent ended with exit code %d", code)
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("the stop took %v", took)
	}
	if got := <-reported; got.code == exitOK || !strings.Contains(got.stderr, "the agent is stopping") {
		t.Errorf("the report ended with exit code %d: %q", got.code, got.stderr)
	}
}

// Whatever the agent follows ends with it, also in all network namespaces.
func TestStopEverywhere(t *testing.T) {
	labtest.Everywhere(t)
	a := newRunAgent(t)
	a.write(t, "version: 1\npeers: [{name: nobody, cidrs: [192.0.2.1/32], existing: ignore}]\n")
	a.more = []string{"--netns", "all"}
	a.start(t)
	if s := a.status(t); len(s.Netns) != 1 || s.Netns[0] != "all" {
		t.Errorf("status: %+v", s)
	}
	if code := a.terminate(t); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

// TestStopHeldUp: an application that keeps a socket locked is no failure of a stop.
func TestStopHeldUp(t *testing.T) {
	loadertest.Need(t, loadertest.Load(t), kernel.Adopt)
	a := newRunAgent(t)
	_, server := labtest.Pair(t, a.Lab, 7102)
	release := labtest.StuckSend(t, server)
	a.write(t, "version: 1\npeers: [{name: nobody, cidrs: [192.0.2.1/32], existing: ignore}]\n")
	a.more = []string{"--netns", "all"}
	a.start(t)
	go func() { // no process ends before its walk does
		for began := time.Now(); len(a.logged("stop")) == 0 && time.Since(began) < time.Minute; time.Sleep(10 * time.Millisecond) {
		}
		release()
	}()
	if code := a.terminate(t); code != exitOK || len(a.logged("stop")) != 1 {
		t.Errorf("exit code %d, log %v", code, a.logged("stop"))
	}
}
