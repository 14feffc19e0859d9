// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/agent"
	"github.com/sockhealth/sockhealth/internal/api"
	"github.com/sockhealth/sockhealth/report"
)

// TestFrozenText: status and events say why nothing is closed, each reason in its own
// words, and not that of another.
func TestFrozenText(t *testing.T) {
	since := time.Now()
	const silent, unseen = "most peers fell silent at once", "not every connection could be looked at"
	for why, want := range map[agent.Freeze]string{agent.FreezeSilent: silent, agent.FreezeUnseen: unseen} {
		told := map[string]string{
			"status": frozenText(&api.Status{FrozenSince: &since, FrozenReason: string(why)}),
			"event": eventLine(&api.Event{Verdict: &api.VerdictEvent{
				Verdict: "dead_path", Action: "frozen", Frozen: string(why), Evidence: report.Evidence{},
			}}),
		}
		for by, text := range told {
			if strings.Contains(text, silent) != (want == silent) || strings.Contains(text, unseen) != (want == unseen) {
				t.Errorf("%s: %s says %q", why, by, text)
			}
		}
	}
	if text := eventLine(&api.Event{Verdict: &api.VerdictEvent{Action: "frozen", Frozen: "later_word"}}); !strings.Contains(text, "not closed: later_word") {
		t.Errorf("a word of a later version: %q", text)
	}
}
