// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"

	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/metrics"
)

// Parts implements metrics.Health.
func (s *service) Parts() metrics.Parts {
	out := metrics.Parts{Attached: s.attached() == nil, Unpinned: len(s.programs.Unpinned()), Silence: failed(s.Silence().Err)}
	if a := s.adopter.Load(); a != nil {
		out.Adoption = failed(a.Coverage().Err)
	}
	if g := s.guard.Load(); g != nil {
		out.Guard = failed(g.Status().Err)
	}
	return out
}

// failed returns err but for what the kernel lacks: the features say that.
func failed(err error) error {
	if errors.Is(err, loader.ErrUnsupported) {
		return nil
	}
	return err
}

// partProblems says what did not do all that it is for.
func partProblems(p metrics.Parts) (out []string) {
	for _, part := range []struct {
		err  error
		what string
	}{
		{p.Adoption, "not every older connection could be brought under the policy"},
		{p.Guard, "not every peer that does not read is guarded, its user timeout may end it"},
		{p.Silence, "the silence watch fails"},
	} {
		if part.err != nil {
			out = append(out, fmt.Sprintf("%s: %v", part.what, part.err))
		}
	}
	return out
}
