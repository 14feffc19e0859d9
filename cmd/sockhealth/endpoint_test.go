// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strings"
	"testing"

	"github.com/sockhealth/sockhealth/internal/api"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
)

// TestUnreached: a socket that nobody reaches is told wherever one looks, and made again as
// soon as that is possible.
func TestUnreached(t *testing.T) {
	a := newRunAgent(t)
	a.start(t)
	admin, reports := a.path("run/"+api.AdminSocket), a.path("run/"+api.ReportSocket)
	if err := os.Remove(reports); err != nil {
		t.Fatal(err)
	}
	if s := a.status(t); s.Health != api.HealthDegraded || len(s.Problems) != 1 || !strings.Contains(s.Problems[0], "reports are not heard") {
		t.Errorf("without report.sock: %s, problems %q", s.Health, s.Problems)
	}
	if code, got := a.ask(t, "/-/ready"); code != 503 || !strings.Contains(got, `not ready: reports are not heard: "run/report.sock" was removed [`) {
		t.Errorf("ready says %d %q", code, got)
	}
	wantMetric(t, a.get(t, "/metrics"), `sockhealth_api_reachable{socket="report.sock"} 0`)
	if err := os.Remove(admin); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(admin, 0o755); err != nil {
		t.Fatal(err)
	}
	a.awaitLogged(t, "the agent answers no command: its socket cannot be made again", 1)
	a.awaitLogged(t, "made a socket again that nobody reached [find out who removes it]", 1)
	if code, got := a.ask(t, "/-/ready"); code != 503 || !strings.Contains(got, "cannot be made again") || strings.Contains(got, "report.sock") {
		t.Errorf("ready says %d %q", code, got)
	}
	c, _ := labtest.Pair(t, a.Lab, managedPort)
	a.report(t, c, "0s")
	if err := os.Remove(admin); err != nil {
		t.Fatal(err)
	}
	a.awaitLogged(t, "made a socket again that nobody reached [find out who removes it]", 2)
	if s := a.status(t); s.Health != api.HealthOK {
		t.Errorf("in the end: %s, problems %q", s.Health, s.Problems)
	}
	got := a.get(t, "/metrics")
	for _, name := range []string{api.AdminSocket, api.ReportSocket} {
		wantMetric(t, got, `sockhealth_api_reachable{socket="`+name+`"} 1`)
		wantMetric(t, got, `sockhealth_api_sockets_remade_total{socket="`+name+`"} 1`)
	}
	if code := a.terminate(t); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}
