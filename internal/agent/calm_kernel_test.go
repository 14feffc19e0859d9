// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
)

// TestClosedUnderJudgement: an application that gives up while its connection is probed
// leaves nothing to put back, and no line in the log.
func TestClosedUnderJudgement(t *testing.T) {
	b := newBed(t, patient)
	if !loadertest.Has(t, b.Programs, kernel.Provoke) {
		return
	}
	var log bytes.Buffer
	b.agent.Log = slog.New(slog.NewTextHandler(&log, nil))
	client, server := labtest.Pair(t, b.Lab, 0)
	exchange(t, client, server)
	labtest.Fault(t)(b.DropPort(labtest.Addr(server.LocalAddr()).Port()))
	b.silent(t, b.Client, client, 1200*time.Millisecond)
	r, done := report(b.Client, client, 0), make(chan error, 1)
	go func() {
		_, err := b.agent.Judge(t.Context(), r)
		done <- err
	}()
	labtest.Eventually(t, late, func() bool { return labtest.Options(t, client).Idle == time.Second }, "a keepalive that is provoked")
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	b.agent.Close()
	if got := log.String(); !strings.Contains(got, "msg=verdict") || strings.Contains(got, "level=WARN") {
		t.Errorf("logged %s", got)
	}
}
