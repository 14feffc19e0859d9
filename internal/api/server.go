// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// Times a client has. A judgement's own time is not among them.
const (
	headerWithin = 5 * time.Second
	readWithin   = 10 * time.Second // header and body
	idleWithin   = 30 * time.Second
	maxHeader    = 8 << 10
)

// Server serves one Unix socket over HTTP/1.1: at most 1,024 connections at a
// time, a share of them for one network namespace and one user (see quota). What
// exceeds that is answered with 503, or dropped where even that is too much.
type Server struct {
	http *http.Server
	// quota counts the connections of this server.
	quota *quota
	// answers counts what this server says.
	answers *tallied
	// later ends what is not bound to a connection.
	later *background
}

// newServer serves h, whose work in the background is later's. Handlers find
// who calls with peerOf.
func newServer(h http.Handler, later *background, log *slog.Logger) *Server {
	answers := &tallied{by: make(map[int]uint64)}
	return &Server{
		quota:   newQuota(),
		answers: answers,
		later:   later,
		http: &http.Server{
			Handler:           limited{h, answers},
			ReadHeaderTimeout: headerWithin,
			ReadTimeout:       readWithin,
			IdleTimeout:       idleWithin,
			MaxHeaderBytes:    maxHeader,
			ConnContext:       withPeer,
			ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		},
	}
}

// limited answers the connections that are over the limit itself, and counts every
// answer.
type limited struct {
	http.Handler
	answers *tallied
}

func (l limited) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w = countedWriter{w, l.answers}
	if peerOf(r).refused {
		w.Header().Set("Connection", "close")
		busy(w, "too many connections: at most %d at a time, %d of one network namespace and %d of one user there, and fewer while others have many; close some or try again in a second",
			maxConns, maxNetnsConns, maxUserConns)
		return
	}
	l.Handler.ServeHTTP(w, r)
}

// Serve accepts connections until Shutdown, or until l is closed, which makes it return
// nil. It closes l. It may serve several listeners at a time.
func (s *Server) Serve(l *net.UnixListener) error {
	err := s.http.Serve(&listener{UnixListener: l, quota: s.quota})
	if err != nil && !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("serve %s: %w", l.Addr(), err)
	}
	return nil
}

// Shutdown lets the requests under way end; judgements that nobody waits for,
// and streams, it ends itself. When ctx ends first it cuts the requests off and
// returns ctx's error.
func (s *Server) Shutdown(ctx context.Context) error {
	s.later.stop()
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, s.http.Close())
	}
	if err = errors.Join(err, s.later.wait(ctx)); err != nil {
		return fmt.Errorf("shut down server: %w", err)
	}
	return nil
}
