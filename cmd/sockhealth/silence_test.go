// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
)

// TestSilence: with a silence in the policy, which comes while the agent runs, a
// connection whose peer is gone is closed, and nobody reports; events, metrics and
// explain tell.
func TestSilence(t *testing.T) {
	a := newRunAgent(t)
	bounded := runPolicy + "    user_timeout: 60s\n    keepalive: {idle: 4s}\n"
	a.write(t, bounded)
	labtest.Enter(t, a.cgroup)
	a.start(t)
	idle, _ := labtest.Pair(t, a.Lab, managedPort)
	client, server := labtest.Pair(t, a.Lab, managedPort)
	if _, err := client.Write([]byte("request")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(server, make([]byte, 7)); err != nil {
		t.Fatal(err)
	}
	labtest.Fault(t)(a.StateLoss(labtest.Addr(client.LocalAddr()), labtest.Addr(client.RemoteAddr())))
	wantMetric(t, a.get(t, "/metrics"), "sockhealth_silence_passes_total 0")
	a.write(t, bounded+"    silence: 1s\n")
	client.SetReadDeadline(time.Now().Add(30 * time.Second))
	labtest.Eventually(t, 15*time.Second, func() bool {
		return strings.Contains(a.explain(t, idle), "without a report where a request stays unanswered for 1s")
	}, "the policy")
	if _, err := client.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNABORTED) {
		t.Errorf("the client reads %v, want ECONNABORTED", err)
	}
	var said string
	labtest.Eventually(t, 15*time.Second, func() bool {
		said, _, _ = a.output(t, a.ns, "events", "--run-dir", "run", "--kind", "verdict")
		return strings.Contains(said, "dead_path, closed") && strings.Contains(said, "asked by silence")
	}, "the event")
	if strings.Contains(said, "(pid") {
		t.Errorf("somebody is said to have asked: %s", said)
	}
	metrics := a.get(t, "/metrics")
	// A pass that is under way when it is closed may have it a second time.
	const suspects = `sockhealth_silence_suspects_total{policy="buffer"} `
	if !strings.Contains(metrics, suspects+"2\n") {
		wantMetric(t, metrics, suspects+"1")
	}
	wantMetric(t, metrics, `sockhealth_stale_sockets_total{cause="dead_path",policy="buffer"} 1`)
	if strings.Contains(metrics, "sockhealth_silence_passes_total 0\n") {
		t.Error("no pass was counted")
	}
	logged := a.logged("verdict")
	if !slices.ContainsFunc(logged, func(e map[string]any) bool {
		return e["reporter"] == "silence" && e["verdict"] == "dead_path" && e["uid"] == 0.0
	}) {
		t.Errorf("logged %v", logged)
	}
	if labtest.State(t, idle) != conn.Established {
		t.Error("its sibling, whose path is well, is closed")
	}
}
