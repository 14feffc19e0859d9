// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/lab/labtest"
)

// stalled are requests whose body never ends, and what they are answered once
// the time is up.
var stalled = []struct {
	name, raw string
	status    int
}{
	{"no body", "POST /v1/reports HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n", 408},
	{"half a body", "POST /v1/reports HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{", 408},
	{"long body", "POST /v1/reports HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n" + strings.Repeat(" ", 50000), 408},
	{"half a chunk", "POST /v1/reports HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n8\r\n{", 408},
	{"expects 100", "POST /v1/reports HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\nExpect: 100-continue\r\n\r\n", 408},
	{"over the limit", "POST /v1/reports HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n" + strings.Repeat(" ", maxBody+1), 413},
	{"over the limit, chunked", "POST /v1/reports HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" +
		fmt.Sprintf("%x\r\n%s", maxBody+2, strings.Repeat(" ", maxBody+1)), 413},
	{"no chunk at all", "POST /v1/reports HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400},
	{"a judgement with a body", "GET /v1/judgements/x?wait=60000 HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n", 408},
	{"a wrong path", "POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n", 404},
	{"a wrong method", "GET /v1/reports HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n", 405},
}

// finalAnswer reads the answer that is not 100, and that the connection ends
// behind it.
func finalAnswer(c net.Conn) (*http.Response, error) {
	_ = c.SetReadDeadline(time.Now().Add(slack))
	from := bufio.NewReader(c)
	resp, err := http.ReadResponse(from, nil)
	if err == nil && resp.StatusCode == http.StatusContinue {
		resp, err = http.ReadResponse(from, nil)
	}
	if err != nil {
		return nil, fmt.Errorf("read answer: %w", err)
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return nil, fmt.Errorf("read answer: %w", err)
	}
	if _, err := io.Copy(io.Discard, from); err != nil && os.IsTimeout(err) {
		return nil, fmt.Errorf("after the answer with status %d the connection stays: %w", resp.StatusCode, err)
	}
	return resp, nil
}

// Whatever is wrong with a body that does not end, it is answered and its
// connection ends, on either socket.
func TestStalledBody(t *testing.T) {
	admin := []struct {
		name, raw string
		status    int
	}{
		{"probe", "POST /v1/sockets/probe HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n", 408},
		{"reload", "POST /v1/reload HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n", 408},
		{"status", "GET /v1/status HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n", 408},
		{"explain", "GET /v1/sockets/explain?local=10.1.1.1:1 HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n", 408},
		{"events", "GET /v1/events?follow=1 HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n", 408},
	}
	const within = 2 * time.Second // for the header, too
	var all sync.WaitGroup
	check := func(socket, name, raw string, status int) {
		all.Go(func() {
			if err := stall(socket, raw, status); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	reports := NewReports(unreached(t), quiet())
	reports.http.ReadTimeout = within
	socket := serve(t, reports, ReportSocket, 0o666)
	for _, tc := range stalled {
		check(socket, tc.name, tc.raw, tc.status)
	}
	if os.Geteuid() == 0 { // the admin socket answers nobody else
		a := NewAdmin(&fixed{}, nil, unreached(t), quiet())
		a.http.ReadTimeout = within
		socket := serve(t, a, AdminSocket, 0o600)
		for _, tc := range admin {
			check(socket, "admin "+tc.name, tc.raw, tc.status)
		}
	}
	all.Wait()
}

// stall sends a request and wants it answered so, and the end of the connection.
func stall(socket, raw string, status int) error {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	defer c.Close()
	go func() { _, _ = io.WriteString(c, raw) }()
	resp, err := finalAnswer(c)
	if err == nil && resp.StatusCode != status {
		err = fmt.Errorf("status %d, want %d", resp.StatusCode, status)
	}
	return err
}

// No user can shut the reports of others, or its own, out with bodies that do
// not come: when their time is up every place is free again.
func TestStalledBodiesGiveTheirPlacesBack(t *testing.T) {
	labtest.Root(t)
	asked := make(chan seen, 1)
	s := NewReports(watch(asked, nil, nil), quiet())
	s.http.ReadTimeout = time.Second
	socket := serve(t, s, ReportSocket, 0o666)
	const clients = 600
	var conns [clients]net.Conn
	asUser(t, someone, func() {
		for i := range conns {
			conns[i] = dial(t, socket)
			_, _ = io.WriteString(conns[i], stalled[i%3].raw) // fails where dropped
		}
	})
	var mu sync.Mutex
	answers := make(map[int]int)
	var all sync.WaitGroup
	for _, c := range conns {
		all.Go(func() {
			status := 0 // dropped over every limit
			if resp, err := finalAnswer(c); err == nil {
				status = resp.StatusCode
			} else if os.IsTimeout(err) || strings.Contains(err.Error(), "stays") {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			answers[status]++
		})
	}
	all.Wait()
	if answers[408] < maxUserConns || answers[408]+answers[503]+answers[0] != clients {
		t.Errorf("answers by status: %v, want %d of 408 or more, and 503 or none where too many connect", answers, maxUserConns)
	}
	waitFor(t, "every place to be given back", func() bool {
		open, refused := s.quota.counts()
		return open == 0 && refused == 0
	})
	var c net.Conn
	asUser(t, someone, func() { c = dial(t, socket) })
	if resp, body := talk(t, c, post("/v1/reports", exampleReport)); resp.StatusCode != http.StatusOK {
		t.Errorf("a report after them: status %d, body %s", resp.StatusCode, body)
	}
	if got := <-asked; got.Caller.UID != someone {
		t.Errorf("asked %+v", got)
	}
}
