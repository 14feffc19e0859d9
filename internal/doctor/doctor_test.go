// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/sockdiag"
)

func TestConclude(t *testing.T) {
	optional := &plan{name: "destroy", lost: "closing", remedy: "build it in"}
	essential := &plan{name: "programs", essential: true, remedy: "see the message"}
	missing := &loader.MissingError{What: "no BTF", Remedy: "run another kernel"}
	for _, tc := range []struct {
		name string
		plan *plan
		err  error
		want Check
	}{
		{"works", optional, nil, Check{Name: "destroy", Status: Works, Detail: "found"}},
		{
			"degraded", optional, fmt.Errorf("destroy: %w", sockdiag.ErrUnsupported),
			Check{Name: "destroy", Status: Degraded, Detail: "destroy: not supported by this kernel", Lost: "closing", Remedy: "build it in"},
		},
		{
			"missing", essential, errors.New("load: permission denied\nline of the verifier\nanother"),
			Check{Name: "programs", Status: Missing, Detail: "load: permission denied", Remedy: "see the message"},
		},
		{
			"the error knows better", essential, fmt.Errorf("start: %w", missing),
			Check{Name: "programs", Status: Missing, Detail: "no BTF", Remedy: "run another kernel"},
		},
		{
			"with a cause", essential, &loader.MissingError{What: "refused", Remedy: "look", Err: errors.New("EPERM")},
			Check{Name: "programs", Status: Missing, Detail: "refused: EPERM", Remedy: "look"},
		},
		{
			"untested", essential, fmt.Errorf("%w: needs the programs", errUntested),
			Check{Name: "programs", Status: Untested, Detail: "not tried: needs the programs"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if d := cmp.Diff(tc.want, conclude(tc.plan, "found", tc.err)); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
		})
	}
}

func TestWorst(t *testing.T) {
	for _, tc := range []struct {
		have []Status
		want Status
	}{
		{nil, Works},
		{[]Status{Works, Works}, Works},
		{[]Status{Works, Degraded, Works}, Degraded},
		{[]Status{Missing, Degraded, Untested}, Missing},
		{[]Status{Degraded, Missing}, Missing},
	} {
		var checks []Check
		for _, s := range tc.have {
			checks = append(checks, Check{Status: s})
		}
		if got := Worst(checks); got != tc.want {
			t.Errorf("%v: %s, want %s", tc.have, got, tc.want)
		}
	}
}

// Every check says what is lost without it and what helps; and none leaves a
// descriptor behind.
func TestExamine(t *testing.T) {
	labtest.Root(t)
	for _, p := range plans() {
		if p.remedy == "" || !p.essential && p.lost == "" {
			t.Errorf("%s: lost %q, remedy %q", p.name, p.lost, p.remedy)
		}
	}
	labtest.NoLeak(t)
	checks, err := Examine(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range checks {
		if c.Name != "namespaces" && c.Name != "foreign_programs" && (c.Status == Works) != expected(t, c.Name) { // of others on this machine
			t.Errorf("got %+v", c)
		}
	}
	wantDocument(t, checks)
}

// expected reports whether a check ought to pass on the running kernel: all do
// that are not about a feature.
func expected(t *testing.T, name string) bool {
	t.Helper()
	if labtest.Without(name) {
		return false
	}
	running, _, err := kernel.Running()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range kernel.Features() {
		if f.String() == name {
			return f.Expected(running)
		}
	}
	return true
}

// Of two ways to the same end one suffices; without both each is degraded.
func TestUnneeded(t *testing.T) {
	for _, tc := range []struct{ diag, scan, wantDiag, wantScan Status }{
		{Works, Works, Works, Works},
		{Works, Degraded, Works, Unneeded},
		{Degraded, Works, Unneeded, Works},
		{Degraded, Degraded, Degraded, Degraded},
		{Degraded, Untested, Degraded, Untested},
	} {
		got := unneeded([]Check{{Name: "inet_diag", Status: tc.diag}, {Name: "scan", Status: tc.scan}})
		if got[0].Status != tc.wantDiag || got[1].Status != tc.wantScan {
			t.Errorf("%s and %s: %+v", tc.diag, tc.scan, got)
		}
	}
}

// Adoption does not do all that its events would: stalls are not told without them.
func TestAdoptEventsNeeded(t *testing.T) {
	got := unneeded([]Check{{Name: kernel.Adopt.String(), Status: Works}, {Name: kernel.AdoptEvents.String(), Status: Degraded}})
	if got[1].Status != Degraded {
		t.Errorf("%+v", got)
	}
}
