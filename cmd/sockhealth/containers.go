// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"github.com/sockhealth/sockhealth/internal/agent"
	"github.com/sockhealth/sockhealth/internal/container"
	"github.com/sockhealth/sockhealth/internal/container/census"
	"github.com/sockhealth/sockhealth/internal/loader"
)

// startCensus keeps in mind which cgroup is which container. Without, nothing but
// their names is missing.
func (s *service) startCensus() error {
	root, err := loader.CgroupRoot()
	if err == nil {
		s.census, err = census.New(root)
	}
	if err != nil {
		s.log.Info("containers are not named", "reason", err)
		return nil
	}
	s.onStop(s.census.Close)
	s.follow(func(ctx context.Context) error {
		s.census.Watch(ctx)
		return nil
	})
	return nil
}

// containers is what the agent asks.
func (s *service) containers() agent.Containers {
	if s.census == nil {
		return nil
	}
	return s.census
}

// containerOf names the container that a cgroup is, where it is one.
func (s *service) containerOf(cgroup uint64) container.ID {
	if s.census == nil {
		return container.ID{}
	}
	return s.census.Of(cgroup)
}

// containersCame has them be noted while they are there.
func (s *service) containersCame() {
	if s.census != nil {
		s.census.Wake()
	}
}
