// SPDX-License-Identifier: Apache-2.0

package report_test

import (
	"log/slog"
	"net/http"
	"time"

	"github.com/sockhealth/sockhealth/report"
)

// An HTTP client whose calls end after two seconds, and whose connections are
// judged then. The README shows the same lines.
func ExampleTransport() {
	transport := &report.Transport{
		Base:        http.DefaultTransport, // or your own
		CallTimeout: 2 * time.Second,
		// Both may be left out: another socket than the default one, where the
		// agent has another --run-dir, and what became of each report.
		Reporter: &report.Client{Socket: "/run/sockhealth/report.sock"},
		OnResult: func(r report.Request, answer *report.Response, err error) {
			slog.Info("call timed out", "local", r.Local, "answer", answer, "err", err)
		},
	}
	defer transport.Close() // ends what is still kept for its verdict or its answer
	client := &http.Client{Transport: transport}
	_, _ = client.Get("http://10.20.1.2:7100/")
}
