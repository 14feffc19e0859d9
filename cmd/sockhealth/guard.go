// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"

	"github.com/sockhealth/sockhealth/internal/guard"
	"github.com/sockhealth/sockhealth/internal/loader"
)

// startGuard begins to keep the user timeout from peers that are alive and do not read.
func (s *service) startGuard() error {
	g := guard.New(guard.Config{Kernel: s.programs, Namespaces: s.spaces, Log: s.log, Seen: s.seen()})
	s.guard.Store(g)
	s.follow(func(ctx context.Context) error {
		err := g.Run(ctx)
		if errors.Is(err, loader.ErrUnsupported) {
			s.log.Info("peers that do not read are not guarded", "reason", err)
			return nil
		}
		return err
	})
	return nil
}

// Guarded implements metrics.Coverage: the connections that are guarded now, by policy.
func (s *service) Guarded() map[string]uint64 {
	out := make(map[string]uint64)
	g, force := s.guard.Load(), s.programs.InForce()
	if g == nil {
		return out
	}
	for id, n := range g.Status().Guarded {
		if peer := force.Peer(id); peer != nil {
			out[peer.Name] += n
		}
	}
	return out
}
