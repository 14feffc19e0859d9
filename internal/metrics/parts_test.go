// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"errors"
	"strings"
	"testing"
)

func TestParts(t *testing.T) {
	failed := errors.New("no memory")
	for line, parts := range map[string]Parts{
		"programs_attached 0":           {},
		"pins_missing 2":                {Attached: true, Unpinned: 2},
		"adoption_last_round_success 0": {Attached: true, Adoption: failed},
		"guard_last_pass_success 0":     {Attached: true, Guard: failed},
		"silence_last_pass_success 0":   {Attached: true, Silence: failed},
	} {
		f := fresh()
		_, well := scrape(t, f.metrics())
		f.parts = parts
		_, body := scrape(t, f.metrics())
		if !strings.Contains(body, "\n"+prefix+line+"\n") || strings.Contains(well, "\n"+prefix+line+"\n") {
			t.Errorf("%+v: no %s, or always", parts, line)
		}
	}
}
