// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/api"
	"github.com/sockhealth/sockhealth/internal/coverage"
	"github.com/sockhealth/sockhealth/internal/sockdiag"
)

// What a feature tells is no problem once more, and hides none.
func TestUntold(t *testing.T) {
	lacks := fmt.Errorf("check the connections of netns 1: %w", sockdiag.ErrUnsupported)
	sight := fmt.Errorf("%w: permission denied", coverage.ErrSight)
	failed := errors.New("check the connections of netns 2: no memory")
	for _, tc := range []struct{ err, want error }{
		{nil, nil},
		{errors.Join(lacks), nil},
		{errors.Join(sight, lacks), nil},
		{errors.Join(sight, lacks, failed), failed},
		{failed, failed},
	} {
		got := untold(tc.err)
		if (got == nil) != (tc.want == nil) || got != nil && got.Error() != tc.want.Error() {
			t.Errorf("%v: got %v, want %v", tc.err, got, tc.want)
		}
	}
}

// What was found under another policy is not told as this one's.
func TestCoveredRevision(t *testing.T) {
	now := time.Now()
	s := &api.Status{Policy: api.PolicyFile{Revision: "b"}}
	for _, tc := range []struct {
		scanned  *time.Time
		revision string
		want     string
	}{
		{nil, "", "not known yet"},
		{&now, "a", "not known for this policy yet"},
		{&now, "b", "- of 0 connections"},
	} {
		s.Coverage.Scanned, s.Coverage.Revision = tc.scanned, tc.revision
		if got := covered(s, now); !strings.HasPrefix(got, tc.want) {
			t.Errorf("%q: got %q, want %q", tc.revision, got, tc.want)
		}
	}
	r := coverage.Report{Outdated: true, Policies: map[string]coverage.Count{"p": {Expected: 3, DriftFound: 2}}}
	p := api.PolicyStatus{Name: "p"}
	if countCoverage(&p, &r); p.Expected != 0 || p.DriftFound != 2 {
		t.Errorf("got %+v", p)
	}
}
