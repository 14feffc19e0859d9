// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// DefaultSocket is where the agent listens unless it was told otherwise.
const DefaultSocket = "/run/sockhealth/report.sock"

// ErrUnreachable says that no agent answered: there is no socket, nobody
// listens on it, this process may not connect to it, or the agent went away
// before it had answered. The error that wraps it says which.
var ErrUnreachable = errors.New("sockhealth agent unreachable")

// StatusError is an answer of the agent that refuses a report.
type StatusError struct {
	// Status is the HTTP status: 4xx says that the report is at fault, 503
	// that the agent is busy and may be asked again after RetryAfter.
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
// such socket is no error but a verdict, "gone".
func (c *Client) Report(ctx context.Context, r Request) (*Response, error) {
	socket := c.Socket
	if socket == "" {
		socket = DefaultSocket
	}
	resp, err := post(ctx, socket, r)
	if err == nil {
		return resp, nil
	}
	if ended := ctx.Err(); ended != nil {
		return nil, fmt.Errorf("report to sockhealth agent: %w", ended)
	}
	return nil, fmt.Errorf("report to sockhealth agent: %w", err)
}
