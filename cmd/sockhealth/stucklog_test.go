// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/api"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
)

// fullPipe returns a pipe that takes nothing more.
func fullPipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = w.Close()
		_ = r.Close()
	})
	for { // the descriptor is non-blocking as long as nobody asks for Fd
		if err := w.SetWriteDeadline(time.Now().Add(10 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		if n, err := w.Write(bytes.Repeat([]byte("x"), 4096)); n < 4096 && err != nil {
			return r, w
		}
	}
}

// TestStuckLog: with a stderr that takes nothing from the start on, the agent starts,
// judges, reloads, shows its metrics and stops.
func TestStuckLog(t *testing.T) {
	a := newRunAgent(t)
	labtest.Enter(t, a.cgroup)
	a.listen = "127.0.0.1:9757" // in a namespace of its own
	a.cmd = a.run(t, "--listen", a.listen)
	_, a.cmd.Stderr = fullPipe(t)
	labtest.Start(t, a.ns, a.cmd)
	kill := time.AfterFunc(2*time.Minute, func() { _ = a.cmd.Process.Kill() }) // then what waits for it fails
	t.Cleanup(func() {
		kill.Stop()
		_ = a.cmd.Process.Kill()
		_ = a.cmd.Wait()
	})
	labtest.Eventually(t, time.Minute, func() bool {
		_, err := api.Dial(a.path("run")).Status(t.Context())
		return err == nil
	}, "the agent's start")
	labtest.Eventually(t, time.Minute, func() bool {
		found, err := filepath.Glob(a.path("run/*/report.sock"))
		return err == nil && len(found) == 1
	}, "report.sock")
	client, _ := labtest.PairTo(t, labtest.Dialer{NS: a.Client}, a.Server, netip.AddrPortFrom(a.ServerAddr4, managedPort))
	if r := a.report(t, client, "0s"); r.Policy != "buffer" {
		t.Errorf("got %+v", r)
	}
	if _, err := api.Dial(a.path("run")).Reload(t.Context()); err != nil {
		t.Error(err)
	}
	metrics := a.get(t, "/metrics")
	wantMetric(t, metrics, "sockhealth_log_lines_dropped_total 0")
	wantMetric(t, metrics, `sockhealth_reports_total{code="200"} 1`)
	began := time.Now()
	if code := a.terminate(t); code != exitOK {
		t.Errorf("exit code %d", code)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("the stop took %v", took)
	}
}
