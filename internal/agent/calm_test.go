// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// TestCalm: a keepalive time that could not be put back is told, and why; not where the
// application has closed the socket during the judgement, or has set the time itself.
func TestCalm(t *testing.T) {
	for name, tc := range map[string]struct {
		missed, orphan bool
		want           string
	}{
		"missed": {missed: true, want: `err="the walk missed it"`},
		"closed": {missed: true, orphan: true},
		"set":    {},
	} {
		bubble(t, name, func(t *testing.T, w *world, a *Agent) {
			var log bytes.Buffer
			a.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
			w.missed = tc.missed
			id := w.add(1, 10*time.Second, nil)
			w.sockets[1].attempt = func(int) bool {
				w.sockets[1].snap.Orphan = tc.orphan
				w.sockets[1].snap.Options.Idle = time.Hour
				return false
			}
			judgeOne(t, a, w.report(id, 2*time.Second))
			if w.provoked == 0 {
				t.Fatal("nothing was provoked")
			}
			if got := log.String(); strings.Contains(got, "restore keepalive") != (tc.want != "") || !strings.Contains(got, tc.want) {
				t.Errorf("logged %q, want %q", got, tc.want)
			}
		})
	}
}
