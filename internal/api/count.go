// SPDX-License-Identifier: Apache-2.0

package api

import (
	"maps"
	"net/http"
	"slices"
	"sync"
)

// Codes are the statuses that reports are answered with.
func Codes() []int {
	return []int{
		http.StatusOK, http.StatusAccepted, http.StatusBadRequest, http.StatusForbidden, http.StatusNotFound,
		http.StatusMethodNotAllowed, http.StatusRequestTimeout, http.StatusRequestEntityTooLarge,
		http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusServiceUnavailable,
	}
}

// OtherCode stands for a status that is not among Codes.
const OtherCode = 0

// Stats is what became of a server's requests and connections.
type Stats struct {
	// Answers counts those that were sent, by Codes and OtherCode.
	Answers map[int]uint64
	// Open is how many connections have a place now.
	Open int
	// Refused counts the connections that found none, told so or not.
	Refused uint64
}

// Stats returns what it is until now.
func (s *Server) Stats() Stats {
	s.quota.mu.Lock()
	open, refused := s.quota.open, s.quota.over
	s.quota.mu.Unlock()
	return Stats{Answers: s.answers.all(), Open: open, Refused: refused}
}

// tallied counts answers by their status.
type tallied struct {
	mu sync.Mutex
	by map[int]uint64
}

func (t *tallied) add(status int) {
	if !slices.Contains(Codes(), status) {
		status = OtherCode
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.by[status]++
}

func (t *tallied) all() map[int]uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.by)
}

// countedWriter counts the answer that goes through it. Where none is written, as the
// client has gone away, there is none to count.
type countedWriter struct {
	http.ResponseWriter
	answers *tallied
}

func (w countedWriter) WriteHeader(status int) {
	w.answers.add(status)
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (w countedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// bare returns net/http's own writer: http.MaxBytesReader knows no other.
func bare(w http.ResponseWriter) http.ResponseWriter {
	if c, ok := w.(countedWriter); ok {
		return c.ResponseWriter
	}
	return w
}
