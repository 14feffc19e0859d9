// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"
)

// supported says that this system can have an agent.
const supported = true

// maxAnswer bounds what is read of an answer: about 20,000 results.
const maxAnswer = 16 << 20

// send makes one request over a connection of its own, with in as its body
// unless that is nil, and decodes the answer into out.
func send(ctx context.Context, socket, method, path string, in *Request, out any) (status int, err error) {
	var body []byte
	if in != nil {
		if body, err = json.Marshal(in); err != nil {
			return 0, fmt.Errorf("encode report: %w", err)
		}
	}
	// The host is never looked up: every dial goes to the Unix socket.
	req, err := http.NewRequestWithContext(ctx, method, "http://sockhealth"+path, bytes.NewReader(body))
	if err != nil {
		return 0, fmt.Errorf("build request: %w", err)
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := unixTransport(socket).RoundTrip(req)
	if err != nil {
		return 0, fmt.Errorf("%w at %s: %w", ErrUnreachable, socket, err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return 0, fmt.Errorf("%w at %s: read answer: %w", ErrUnreachable, socket, err)
	}
	return resp.StatusCode, decode(resp, answer, out)
}

func unixTransport(socket string) *http.Transport {
	var d net.Dialer
	return &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return d.DialContext(ctx, "unix", socket)
		},
	}
}

// decode decodes an answer; a refusal is a *StatusError.
func decode(resp *http.Response, answer []byte, out any) error {
	if len(answer) > maxAnswer {
		return fmt.Errorf("decode answer: longer than %d bytes", maxAnswer)
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return &StatusError{
			Status:     resp.StatusCode,
			Message:    message(resp, answer),
			RetryAfter: retryAfter(resp.Header.Get("Retry-After")),
		}
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return fmt.Errorf("decode answer: %w", err)
	}
	return nil
}

// message returns the text of a refusal, whoever wrote it.
func message(resp *http.Response, answer []byte) string {
	var e Error
	if json.Unmarshal(answer, &e) == nil && e.Error != "" {
		return e.Error
	}
	const enough = 200 // not from an agent: a proxy's page can be long
	if text := bytes.TrimSpace(answer); len(text) > 0 {
		return string(text[:min(len(text), enough)])
	}
	return http.StatusText(resp.StatusCode)
}

func retryAfter(header string) time.Duration {
	if s, err := strconv.ParseUint(header, 10, 16); err == nil {
		return time.Duration(s) * time.Second
	}
	return 0
}
