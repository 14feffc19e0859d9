// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"

	"github.com/sockhealth/sockhealth/internal/adopt"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/netns/registry"
)

// startNamespaces finds the node's network namespaces, and follows them. With
// --netns there are only those that the paths lead to.
func (s *service) startNamespaces() (err error) {
	if s.paths != nil {
		s.spaces = s.paths
		s.onStop(s.takeLeave)
		s.follow(func(ctx context.Context) error {
			s.paths.Watch(ctx)
			return nil
		})
		return nil
	}
	r, err := registry.New(s.programs)
	if err != nil {
		return err
	}
	s.onStop(r.Close)
	s.spaces, s.registry = r, r
	s.onStop(s.takeLeave)
	if err := r.Refresh(); err != nil {
		s.log.Warn("not every network namespace is in sight", "error", err) // status tells, too
	}
	s.follow(func(ctx context.Context) error {
		r.Watch(ctx, 0, nil)
		return nil
	})
	return nil
}

// sight says why namespaces that the agent acts in may be out of its sight, nil where none
// is. A path that leads nowhere is told with its remedy.
func (s *service) sight() error {
	if s.paths == nil {
		return s.registry.Status().Err
	}
	if err := s.paths.Err(); err != nil {
		return &loader.MissingError{What: "a path of --netns leads nowhere", Err: err, Remedy: lostNetnsRemedy}
	}
	return nil
}

// takeLeave gives each connect() under way its own user timeout back where the
// programs come off with this process: nobody could do it later.
func (s *service) takeLeave() error {
	if s.pins != nil {
		return nil
	}
	err := s.programs.Leave()
	if err == nil {
		l := newLeave(s.programs, s.spaces.All())
		l.patience = grace
		err = l.connects(context.Background())
		l.close()
	}
	if err != nil && !errors.Is(err, loader.ErrUnsupported) {
		s.log.Warn("connections that are being made may keep the user timeout of connect()", "error", err)
	}
	return nil
}

// seen is told of the namespace of each report and event: one that is younger than
// the last look is found at once. Nil with --netns.
func (s *service) seen() func(inode uint32) {
	if s.registry == nil {
		return nil
	}
	return s.registry.Unknown
}

// startAdopter brings the connections in line that the programs did not see
// open, now and whenever the policy or the namespaces change.
func (s *service) startAdopter() error {
	a := adopt.New(adopt.Config{Kernel: s.programs, Namespaces: s.spaces, Log: s.log, Rate: adopt.Rate})
	s.adopter.Store(a)
	came := func() {
		a.Wake()
		s.containersCame()
	}
	if s.paths != nil {
		s.paths.Tell(func(old, now uint32) {
			s.log.Info("a network namespace took another's place", "netns", now, "was", old)
			came()
		})
	} else {
		cancel := s.registry.Subscribe(func(_ *netns.NS, here bool) {
			if here {
				came()
			}
		})
		s.onStop(func() error {
			cancel()
			return nil
		})
	}
	s.follow(func(ctx context.Context) error {
		err := a.Run(ctx)
		if errors.Is(err, loader.ErrUnsupported) {
			s.log.Info("connections that are older than the agent are not adopted", "reason", err)
			return nil
		}
		return err
	})
	return nil
}

// follow runs fn until the stop.
func (s *service) follow(fn func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	s.onStop(func() error {
		cancel()
		<-done
		return nil
	})
	s.serve(func() error {
		defer close(done)
		return fn(ctx)
	})
}
