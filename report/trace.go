// SPDX-License-Identifier: Apache-2.0

package report

import (
	"net"
	"net/http/httptrace"
	"sync"
	"time"
)

// trace remembers which connection carries a request and since when.
type trace struct {
	mu   sync.Mutex
	conn net.Conn  // nil until there is one; the last, where Base tried again
	sent time.Time // the request was written to it, or, until then, was given it
}

// hooks returns what the net/http client calls, from any goroutine.
func (t *trace) hooks() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.conn, t.sent = info.Conn, time.Now()
		},
		WroteRequest: func(info httptrace.WroteRequestInfo) {
			t.mu.Lock()
			defer t.mu.Unlock()
			if info.Err == nil {
				t.sent = time.Now()
			}
		},
	}
}

// request builds the report as of now, if there is a connection to report.
func (t *trace) request(now time.Time) (Request, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.conn == nil {
		return Request{}, false
	}
	r, err := NewRequest(t.conn, now.Sub(t.sent))
	return r, err == nil
}
