// SPDX-License-Identifier: Apache-2.0

package api

import (
	"maps"
	"testing"
)

// Every answer counts under its status, and every connection that finds no place.
func TestStats(t *testing.T) {
	s := NewReports(unreached(t), quiet())
	s.waitLong()
	socket := serve(t, s, ReportSocket, 0o666)
	c := dial(t, socket)
	for _, request := range []string{
		"GET /v1/reports HTTP/1.1\r\nHost: x\r\n\r\n", "GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n", post("/v1/reports", "{"),
	} {
		talk(t, c, request)
	}
	want := map[int]uint64{405: 1, 404: 2, 400: 1}
	if got := s.Stats(); !maps.Equal(got.Answers, want) || got.Open != 1 || got.Refused != 0 {
		t.Errorf("got %+v, want %v and one connection open", got, want)
	}
	const more = 7
	for range maxConns + more {
		dial(t, socket)
	}
	waitFor(t, "the connections to be counted", func() bool {
		got := s.Stats()
		return got.Open+int(got.Refused) == maxConns+more+1
	})
	if got := s.Stats(); got.Open == 0 || got.Refused < more+1 {
		t.Errorf("%d open, %d refused", got.Open, got.Refused)
	}
	s.answers.add(418)
	if got := s.Stats().Answers[OtherCode]; got != 1 {
		t.Errorf("%d answers of another status, want 1", got)
	}
}
