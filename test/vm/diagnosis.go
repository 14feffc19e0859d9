// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"strings"

	"github.com/sockhealth/sockhealth/internal/kernel"
)

// diagnosis is what `sockhealth doctor -o json` prints.
type diagnosis struct {
	Checks []struct{ Name, Status string }
}

// diagnosed reads doctor's report, which is empty where it did not end.
func (r *result) diagnosed() diagnosis {
	var d diagnosis
	_ = json.Unmarshal(r.Doctor, &d)
	return d
}

// checks lists the names of doctor's checks, without those of the machine.
func (r *result) checks() []string {
	var out []string
	for _, c := range r.diagnosed().Checks {
		if c.Name != "kernel" && !strings.HasPrefix(c.Name, "CAP_") && c.Name != "namespaces" {
			out = append(out, c.Name)
		}
	}
	return out
}

// cell is what was found of a check, in the words that internal/doctor's test of the
// table expects.
func (r *result) cell(name string) string {
	for _, c := range r.diagnosed().Checks {
		switch {
		case c.Name != name:
		case c.Status == "works":
			return "yes"
		case c.Status == "untested":
			return "untested"
		default:
			return "no"
		}
	}
	return "?"
}

// series is the release as a column's head: "6.1".
func (r *result) series() string {
	release, err := kernel.ParseRelease(r.Release)
	if err != nil {
		return r.Release
	}
	return release.String()
}

// verdict says what came of the tests.
func (r *result) verdict() string {
	switch {
	case r.Bad > 0 || len(r.Failed) > 0:
		return "fails"
	case r.Passed == 0:
		return "not run"
	}
	return "passes"
}
