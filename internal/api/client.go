// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"path/filepath"
	"syscall"

	"github.com/sockhealth/sockhealth/report"
)

// Client asks the admin socket of an agent.
type Client struct {
	socket string
	http   *http.Transport
}

// Dial returns a client of the agent that holds the run directory. It does not
// connect yet: each question does, and says so if it cannot.
//
// The errors of all questions wrap ErrUnreachable where no agent answers,
// ErrPermission where only root may ask, and ctx's own where it ended.
func Dial(runDir string) *Client {
	socket := filepath.Join(runDir, AdminSocket)
	var d net.Dialer
	return &Client{socket: socket, http: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return d.DialContext(ctx, "unix", socket)
		},
	}}
}

// Status asks how the agent is.
func (c *Client) Status(ctx context.Context) (*Status, error) {
	var s Status
	if err := c.get(ctx, statusPath, &s); err != nil {
		return nil, err
	}
	return &s, nil
}

// Sockets asks for the sockets of all namespaces served.
func (c *Client) Sockets(ctx context.Context) (*Sockets, error) {
	var s Sockets
	if err := c.get(ctx, socketsPath, &s); err != nil {
		return nil, err
	}
	return &s, nil
}

// Policy asks for the policy in force.
func (c *Client) Policy(ctx context.Context) (*Policy, error) {
	var p Policy
	if err := c.get(ctx, policyPath, &p); err != nil {
		return nil, err
	}
	return &p, nil
}

// get asks for one path and decodes the answer.
func (c *Client) get(ctx context.Context, path string, into any) error {
	err := c.ask(ctx, path, into)
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("ask agent at %s for %s: %w", c.socket, path, err)
	}
	return nil
}

func (c *Client) ask(ctx context.Context, path string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://sockhealth"+path, nil)
	if err != nil {
		return err
	}
	resp, err := c.http.RoundTrip(req)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w [run as root]", ErrPermission)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%w: nobody listens [is sockhealth run started, with this --run-dir?]", ErrUnreachable)
	case err != nil:
		return fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return refusal(resp)
	}
	return decodeSchema(resp, into)
}

// refusal turns an answer other than 200 into an error.
func refusal(resp *http.Response) error {
	var e report.Error
	if err := json.NewDecoder(resp.Body).Decode(&e); err != nil || e.Error == "" {
		e.Error = http.StatusText(resp.StatusCode)
	}
	if resp.StatusCode == http.StatusForbidden {
		return fmt.Errorf("%w: %s", ErrPermission, e.Error)
	}
	return fmt.Errorf("refused with status %d: %s", resp.StatusCode, e.Error)
}

// versioned is what every answer has.
type versioned struct {
	Schema int `json:"schema"`
}

// decodeSchema decodes an answer of the schema that this client knows.
func decodeSchema(resp *http.Response, into any) error {
	var raw json.RawMessage
	if err := json.NewDecoder(resp.Body).Decode(&raw); err != nil {
		return fmt.Errorf("%w: read answer: %w", ErrUnreachable, err)
	}
	var version versioned
	if err := json.Unmarshal(raw, &version); err != nil {
		return fmt.Errorf("decode answer: %w", err)
	}
	if version.Schema != Schema {
		return fmt.Errorf("answer has schema %d, this command knows %d [use the agent's own version]", version.Schema, Schema)
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("decode answer: %w", err)
	}
	return nil
}
