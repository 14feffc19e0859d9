// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

// DefaultSocket is where the agent listens unless it was told otherwise.
const DefaultSocket = "/run/sockhealth/report.sock"

// Paths of the agent's API.
const (
	reportsPath    = "/v1/reports"
	judgementsPath = "/v1/judgements/"
	// waitLong is as long as the agent has a client wait for one answer.
	waitLong = "?wait=60000"
)

// ErrUnreachable says that no agent answered: there is no socket, nobody
// listens on it, this process may not connect to it, or the agent went away
// before it had answered. The error that wraps it says which.
var ErrUnreachable = errors.New("sockhealth agent unreachable")

// StatusError is an answer of the agent that refuses a report.
type StatusError struct {
	// Status is the HTTP status: 4xx says that the report is at fault, 429 and
	// 503 that the caller sends too many or the agent is busy, and that it may
	// be asked again after RetryAfter.
	Status int
	// Message is the agent's own, which says what is wrong and what to do.
	Message string
	// RetryAfter is 0 where the agent named no time.
	RetryAfter time.Duration
}

// Error returns the status and the agent's message.
func (e *StatusError) Error() string {
	return fmt.Sprintf("report refused with status %d: %s", e.Status, e.Message)
}

// Client sends reports. The zero value speaks to the agent at DefaultSocket.
// It keeps no connection, so that the agent always hears the namespace of the
// thread that calls, and may be copied.
type Client struct {
	// Socket is the path of the agent's report.sock; "" means DefaultSocket.
	Socket string
}

// Report sends one report and returns when the judgement is in, which takes up
// to the probe window of the peer's policy (3 s by default), or when ctx ends.
// It sets no deadline of its own.
//
// The error is ctx's own where that ended; it wraps ErrUnreachable where no
// agent answered; it is a *StatusError where the agent refused; and it wraps
// errors.ErrUnsupported on other systems than Linux. That the caller holds no
// such socket is no error but a verdict, "gone", and an empty list of results
// where the report has Peer alone.
func (c *Client) Report(ctx context.Context, r Request) (*Response, error) {
	var resp Response
	if _, err := send(ctx, c.socket(), http.MethodPost, reportsPath, &r, &resp); err != nil {
		return nil, ended(ctx, "report to sockhealth agent", err)
	}
	return &resp, nil
}

// Submit sends one report and returns at once, with the id of the judgement that
// Result fetches. The agent goes on by itself; it keeps the answer for a minute,
// and up to 256 judgements of one user in one network namespace (what exceeds
// that is a *StatusError with 429). Errors are those of Report.
func (c *Client) Submit(ctx context.Context, r Request) (id string, err error) {
	var p Pending
	if _, err := send(ctx, c.socket(), http.MethodPost, reportsPath+"?wait=0", &r, &p); err != nil {
		return "", ended(ctx, "report to sockhealth agent", err)
	}
	if p.Judgement == "" {
		return "", errors.New("report to sockhealth agent: the answer has no judgement id")
	}
	return p.Judgement, nil
}

// Result returns when the judgement of that id is in, or when ctx ends. It may be
// asked for more than once, and is to be asked for by the user and from the
// network namespace that submitted. Errors are those of Report; one that is not
// known, or no longer, is a *StatusError with 404.
func (c *Client) Result(ctx context.Context, id string) (*Response, error) {
	path := judgementsPath + url.PathEscape(id) + waitLong
	for {
		var resp Response
		status, err := send(ctx, c.socket(), http.MethodGet, path, nil, &resp)
		switch {
		case err != nil:
			return nil, ended(ctx, "fetch judgement from sockhealth agent", err)
		case status != http.StatusAccepted:
			return &resp, nil
		}
	}
}

func (c *Client) socket() string {
	if c.Socket != "" {
		return c.Socket
	}
	return DefaultSocket
}

// ended says what was being done, and prefers ctx's own error.
func ended(ctx context.Context, what string, err error) error {
	if over := ctx.Err(); over != nil {
		err = over
	}
	return fmt.Errorf("%s: %w", what, err)
}
