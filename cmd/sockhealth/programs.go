// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"time"

	"github.com/sockhealth/sockhealth/internal/loader"
)

// beat is how often the next start is told that this agent is alive: the time
// without an agent, after one that was killed, is right to that.
const beat = 5 * time.Second

// lock keeps other agents out: of the cgroup, wherever they pin, and of the pins.
func (s *service) lock() (err error) {
	if s.cgroup = s.opts.cgroup; s.cgroup == "" {
		if s.cgroup, err = loader.CgroupRoot(); err != nil {
			return err
		}
	}
	l, err := loader.LockCgroup(s.cgroup, s.opts.nested)
	if err != nil {
		return remedied(err, noCgroupRemedy)
	}
	s.onStop(l.Close)
	for _, one := range l.Strangers {
		s.log.Warn("the cgroup is locked by a process that is no agent: another agent would not be noticed",
			"cgroup", one.Dir, "pid", one.PID)
	}
	for _, one := range l.Beside {
		if len(s.opts.netns) == 0 {
			s.log.Warn("another agent works on a cgroup beside this one, and each may adopt the connections of both: give each network namespaces of its own (--netns)",
				"pid", one.PID, "below", one.Dir)
		}
	}
	if s.opts.noPin {
		return nil
	}
	if s.pins, err = loader.OpenPins(s.opts.bpffs); err != nil {
		return err
	}
	s.onStop(s.pins.Close)
	return nil
}

// closePrograms lets go of them. An application that keeps a socket locked is no fault of
// this stop: the process ends with that walk.
func (s *service) closePrograms() error {
	err := s.programs.Close()
	if errors.Is(err, loader.ErrWalking) {
		s.log.Warn("stop", "error", err)
		return nil
	}
	return err
}

// loadPrograms loads them, gives them the policy and only then lets them see
// connections.
func (s *service) loadPrograms() (err error) {
	switch {
	case s.pins != nil:
		s.programs, err = loader.LoadPinned(s.pins, nil)
	case s.opts.nested:
		s.programs, err = loader.LoadNested(nil)
	default:
		s.programs, err = loader.Load(nil)
	}
	if err != nil {
		return err
	}
	s.onStop(s.closePrograms)
	// Watched from before it is read: no change in between is missed.
	if s.watch, err = s.reloader.Watch(); err != nil {
		return err
	}
	s.onStop(s.watch.Close)
	if err := s.reloader.Load(); err != nil {
		return err
	}
	if err := s.programs.Attach(s.cgroup); err != nil {
		return err
	}
	s.programs.LoadAll()
	s.logTakeover(s.programs.Takeover())
	return nil
}

// logTakeover says what this start went on with.
func (s *service) logTakeover(t loader.Takeover) {
	if t.Links {
		s.log.Info("took over from the agent before", "pins", s.pinned(), "unattended", t.Unattended.Round(time.Millisecond),
			"revision", t.Revision, "records_converted", t.Converted)
	}
	if t.Moved {
		s.log.Warn("the programs were attached to another cgroup, and are there no more", "cgroup", s.cgroup)
	}
	if t.Lost != nil {
		s.log.Warn("not all could be taken over; connections keep the options that they have", "error", t.Lost)
	}
	if len(t.Swept) > 0 {
		s.log.Info("removed pins of another version", "names", t.Swept)
	}
}

// abandon removes what a start that fails has pinned, or puts the policy back that was in
// force before it.
func (s *service) abandon() error {
	switch {
	case s.programs != nil:
		return s.programs.Abandon()
	case s.pins != nil:
		return s.pins.RemoveEmpty()
	}
	return nil
}

// startBeat tells the next start, now and then, that this agent is alive.
func (s *service) startBeat() error {
	if s.pins == nil {
		return nil
	}
	s.eachBeat(func() {
		if err := s.programs.Beat(); err != nil {
			s.log.Warn("cannot tell the next start that this agent is alive", "error", err)
		}
	})
	return nil
}

// eachBeat does something every beat until the end.
func (s *service) eachBeat(do func()) {
	s.follow(func(ctx context.Context) error {
		tick := time.NewTicker(beat)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-tick.C:
				do()
			}
		}
	})
}

// pinned is the directory of the pins, "none" without.
func (s *service) pinned() string {
	if s.pins == nil {
		return "none"
	}
	return s.pins.Dir()
}
