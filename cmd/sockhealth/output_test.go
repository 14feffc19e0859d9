// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/api"
)

// Times are told with their unit in both formats of the log.
func TestLoggedTimes(t *testing.T) {
	for _, format := range []string{"text", asJSON} {
		var out bytes.Buffer
		newLogger(&out, format, "info").Info("took over", "unattended", 1500*time.Millisecond, "n", 3)
		if format == asJSON {
			var line map[string]any
			if err := json.Unmarshal(out.Bytes(), &line); err != nil || line["unattended"] != "1.5s" || line["n"] != 3.0 {
				t.Errorf("%v: %s", err, out.Bytes())
			}
			continue
		}
		if !bytes.Contains(out.Bytes(), []byte(" unattended=1.5s n=3\n")) {
			t.Errorf("%s", out.Bytes())
		}
	}
}

// What is not known is not told as a figure.
func TestSocketRows(t *testing.T) {
	rows := socketRows([]api.Socket{
		{AgeMS: 5000, LastDataMS: 4000, BytesReceived: 1},
		{AgeMS: 5000, LastDataMS: 4000, Adopted: true},
	}, true)
	column := make(map[string]int)
	for i, name := range rows[0] {
		column[name] = i
	}
	for i, want := range map[int][2]string{1: {"5s", "4s"}, 2: {">5s", "-"}} {
		if got := [2]string{rows[i][column["AGE"]], rows[i][column["LAST-DATA"]]}; got != want {
			t.Errorf("row %d: %q, want %q", i, got, want)
		}
	}
}

// The bound of a guarded connection is told with the guard's interval, as it is.
func TestGuardedBound(t *testing.T) {
	for every, want := range map[int64]string{
		0:    "30s and one look of the guard after the last packet, once",
		250:  "30s and up to 250ms after the last packet, once",
		8400: "30s and up to 8.4s after the last packet, once",
	} {
		x := &api.Explanation{Socket: api.Socket{Guarded: true}}
		x.Detail.Effective.UserTimeoutMS, x.Detail.GuardIntervalMS = 30_000, every
		if got := inFlightBound(x); !strings.HasPrefix(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
