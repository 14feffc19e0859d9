// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net"
	"sync"

	"github.com/sockhealth/sockhealth/internal/api"
	"github.com/sockhealth/sockhealth/internal/metrics"
)

// endpoint is one of the agent's Unix sockets, with its server.
type endpoint struct {
	name, lost string // in the run directory; what is lost while nobody reaches it
	server     *api.Server
	l          *net.UnixListener // of startAPI, then of startEndpoints

	mu     sync.Mutex
	err    error // why it could not be made again
	remade uint64
}

// newEndpoints makes what startAPI serves. Who asks for metrics before that is told that
// nobody reaches them.
func (s *service) newEndpoints() error {
	s.reports = api.NewReports(s.agent, s.log)
	s.ends = []*endpoint{
		{name: api.AdminSocket, lost: "the agent answers no command", server: api.NewAdmin(&admin{s}, s.agent, s.agent, s.log)},
		{name: api.ReportSocket, lost: "reports are not heard", server: s.reports},
	}
	return nil
}

// startAPI serves admin.sock, and report.sock last: who can report finds an
// agent that works.
func (s *service) startAPI() (err error) {
	for i, listen := range []func() (*net.UnixListener, error){s.runDir.ListenAdmin, s.runDir.ListenReports} {
		e := s.ends[i]
		if e.l, err = listen(); err != nil {
			return err
		}
		s.onStop(func() error { return s.shutdown(e.server.Shutdown) })
		s.serveOn(e, e.l)
	}
	// Before the servers: who waits for a verdict is told that none comes.
	s.onStop(func() error {
		s.agent.Close()
		return nil
	})
	return nil
}

func (s *service) serveOn(e *endpoint, l *net.UnixListener) {
	s.serve(func() error { return e.server.Serve(l) })
}

// startEndpoints looks, now and then, whether the names of the sockets still lead to them,
// and makes them again where they do not.
func (s *service) startEndpoints() error {
	s.eachBeat(func() {
		for _, e := range s.ends {
			s.seeTo(e)
		}
	})
	return nil
}

// seeTo makes a socket again that nobody reaches.
func (s *service) seeTo(e *endpoint) {
	why := s.runDir.Check(e.name)
	if why == nil {
		e.note(nil)
		return
	}
	l, err := s.runDir.Again(e.name)
	if e.note(err) {
		s.log.Warn(e.lost+": its socket cannot be made again", "socket", e.name, "reason", why, "error", err)
	}
	if err != nil {
		return
	}
	s.log.Warn("made a socket again that nobody reached [find out who removes it]", "socket", e.name, "reason", why)
	_ = e.l.Close() // what it has accepted goes on
	e.l = l
	e.mu.Lock()
	e.remade++
	e.mu.Unlock()
	s.serveOn(e, l)
}

// note keeps why the socket could not be made again, and reports whether that is new.
func (e *endpoint) note(err error) (fresh bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	fresh = err != nil && (e.err == nil || e.err.Error() != err.Error())
	e.err = err
	return fresh
}

// unreachable says which sockets nobody reaches now.
func (s *service) unreachable() (out []error) {
	for _, e := range s.ends {
		why := s.runDir.Check(e.name)
		if why == nil {
			continue
		}
		e.mu.Lock()
		err := e.err
		e.mu.Unlock()
		if err != nil {
			out = append(out, fmt.Errorf("%s: %w, and cannot be made again: %w", e.lost, why, err))
		} else {
			out = append(out, fmt.Errorf("%s: %w [within %v it is made again]", e.lost, why, beat))
		}
	}
	return out
}

// apiProblems tells of them.
func (s *service) apiProblems() (out []string) {
	for _, err := range s.unreachable() {
		out = append(out, err.Error())
	}
	return out
}

// Endpoints implements metrics.API.
func (s *service) Endpoints() (out []metrics.Endpoint) {
	for _, e := range s.ends {
		e.mu.Lock()
		n := e.remade
		e.mu.Unlock()
		out = append(out, metrics.Endpoint{Socket: e.name, Reached: s.runDir.Check(e.name) == nil, Remade: n})
	}
	return out
}
