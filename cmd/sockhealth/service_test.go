// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/sockhealth/sockhealth/internal/api"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
)

// A service that stops, and a start that fails at its last step, leave no
// goroutine and no descriptor.
func TestServiceLeavesNothing(t *testing.T) {
	a := newRunAgent(t)
	o := &runOptions{
		policy: a.path("policy.yaml"), listen: "127.0.0.1:0", cgroup: a.cgroup.Path, runDir: a.path("run"), noPin: true,
		netns: []string{fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), a.Client.FD())},
	}
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	// The first time the runtime makes what it keeps.
	for _, name := range []string{"warm", "stops", "fails"} {
		t.Run(name, func(t *testing.T) {
			if name != "warm" {
				labtest.NoLeak(t)
				t.Cleanup(func() { goleak.VerifyNone(t) })
			}
			if name == "fails" {
				if err := os.MkdirAll(a.path("run/report.sock"), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			var s *service
			err := a.ns.Do(func() (err error) { // its metrics listen there
				s, err = start(o, log)
				return err
			})
			if name == "fails" {
				if err == nil {
					t.Fatal("started")
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			a.write(t, runPolicy+"# changed\n")
			if _, err := api.Dial(a.path("run")).Reload(t.Context()); err != nil {
				t.Error(err)
			}
			if ok, _ := s.LastReload(); !ok {
				t.Error("the reload was refused")
			}
			if err := s.stop(); err != nil {
				t.Error(err)
			}
		})
	}
}
