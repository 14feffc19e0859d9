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

// post sends one report over a connection of its own.
func post(ctx context.Context, socket string, r Request) (*Response, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode report: %w", err)
	}
	// The host is never looked up: every dial goes to the Unix socket.
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://sockhealth/v1/reports", bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("build report: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := unixTransport(socket).RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("%w at %s: %w", ErrUnreachable, socket, err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return nil, fmt.Errorf("%w at %s: read answer: %w", ErrUnreachable, socket, err)
	}
	return decode(resp, answer)
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

// decode turns an answer into a Response or a *StatusError.
func decode(resp *http.Response, answer []byte) (*Response, error) {
	if len(answer) > maxAnswer {
		return nil, fmt.Errorf("decode answer: longer than %d bytes", maxAnswer)
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return nil, &StatusError{
			Status:     resp.StatusCode,
			Message:    message(resp, answer),
			RetryAfter: retryAfter(resp.Header.Get("Retry-After")),
		}
	}
	var out Response
	if err := json.Unmarshal(answer, &out); err != nil {
		return nil, fmt.Errorf("decode answer: %w", err)
	}
	return &out, nil
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
