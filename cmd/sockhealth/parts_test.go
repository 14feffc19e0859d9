// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"testing"

	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/metrics"
)

// What fails is a problem, each for itself; what the kernel refuses is told as a feature.
func TestPartProblems(t *testing.T) {
	for err, want := range map[error]int{nil: 0, errors.New("no memory"): 1, loader.ErrUnsupported: 0} {
		err = failed(err)
		for _, p := range []metrics.Parts{{Adoption: err}, {Guard: err}, {Silence: err}} {
			if got := partProblems(p); len(got) != want {
				t.Errorf("%+v: %q", p, got)
			}
		}
	}
}
