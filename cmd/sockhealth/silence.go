// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"

	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/silence"
)

// startSilence begins to watch for requests that stay unanswered, where the policy
// says so now or later.
func (s *service) startSilence() error {
	w := silence.New(silence.Config{Kernel: s.programs, Judge: s.judgeSilent, Log: s.log})
	s.silence.Store(w)
	s.follow(func(ctx context.Context) error {
		err := w.Run(ctx)
		if errors.Is(err, loader.ErrUnsupported) {
			s.log.Warn("nothing is judged without a report, although the policy has a silence", "reason", err)
			return nil
		}
		return err
	})
	return nil
}

// judgeSilent hands a suspect to the agent. One in a namespace that is out of sight
// waits for the next pass.
func (s *service) judgeSilent(one loader.Suspect) {
	ns, ok := s.namespace(one.Netns)
	if !ok {
		if s.registry != nil {
			s.registry.Unknown(one.Netns)
			s.silence.Load().Again(one)
		}
		return
	}
	defer ns.Close()
	s.agent.JudgeSilent(ns, one, s.silence.Load().Again)
}

// namespace returns a handle, which the caller closes, of the namespace with this
// number, where the agent acts in it.
func (s *service) namespace(inode uint32) (*netns.NS, bool) {
	if s.registry != nil {
		return s.registry.ByInode(inode)
	}
	return s.paths.ByInode(inode)
}

// Silence implements metrics.Silence.
func (s *service) Silence() silence.Stats {
	if w := s.silence.Load(); w != nil {
		return w.Stats()
	}
	return silence.Stats{}
}
