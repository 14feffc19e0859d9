// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/sockhealth/sockhealth/internal/conn"
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
// ErrPermission where only root may ask, ErrRequest where the question is at fault, and ctx's own where it ended.
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

// Unmanaged asks for the sockets that a policy names and that are not bounded as
// it wants.
func (c *Client) Unmanaged(ctx context.Context) (*Unmanaged, error) {
	var u Unmanaged
	if err := c.get(ctx, unmanagedPath, &u); err != nil {
		return nil, err
	}
	return &u, nil
}

// Policy asks for the policy in force.
func (c *Client) Policy(ctx context.Context) (*Policy, error) {
	var p Policy
	if err := c.get(ctx, policyPath, &p); err != nil {
		return nil, err
	}
	return &p, nil
}

// Explain asks for all there is to say about one socket. Of the ID only Local,
// Remote, Cookie and Netns count, and what is zero is not asked for; Local or
// Cookie must be given. The error wraps ErrNoSocket or ErrAmbiguous where it is
// not exactly one.
func (c *Client) Explain(ctx context.Context, id conn.ID) (*Explanation, error) {
	var x Explanation
	if err := c.get(ctx, explainPath+"?"+newSocketID(id).query(), &x); err != nil {
		return nil, err
	}
	return &x, nil
}

// Probe has one socket probed now; nothing is closed. For the ID and the errors
// see Explain.
func (c *Client) Probe(ctx context.Context, id conn.ID) (*Probed, error) {
	body, err := json.Marshal(newSocketID(id))
	if err != nil {
		return nil, fmt.Errorf("encode socket: %w", err)
	}
	var p Probed
	if err := c.ask(ctx, http.MethodPost, probePath, body, decodeInto(&p)); err != nil {
		return nil, err
	}
	return &p, nil
}

// Reload has the policy file read again. The error wraps a *policy.Errors where
// the file is not right; the policy in force stays then.
func (c *Client) Reload(ctx context.Context) (*Reloaded, error) {
	var r Reloaded
	if err := c.ask(ctx, http.MethodPost, reloadPath, nil, decodeInto(&r)); err != nil {
		return nil, err
	}
	return &r, nil
}

// Events calls fn for each event asked for, until there is no more, fn returns
// an error, which Events returns as it is, or ctx ends. With Follow there is
// always more: that the agent ends wraps ErrUnreachable.
func (c *Client) Events(ctx context.Context, q EventQuery, fn func(Event) error) error {
	var own error
	err := c.ask(ctx, http.MethodGet, eventsPath+"?"+q.query(), nil, func(resp *http.Response) error {
		dec := json.NewDecoder(resp.Body)
		for {
			var e Event
			switch err := dec.Decode(&e); {
			case err == io.EOF && q.Follow:
				return fmt.Errorf("%w: the agent has ended the stream", ErrUnreachable)
			case err == io.EOF:
				return nil
			case err != nil:
				return fmt.Errorf("%w: read event: %w", ErrUnreachable, err)
			case e.Schema != Schema:
				return schemaError(e.Schema)
			}
			if own = fn(e); own != nil {
				return own
			}
		}
	})
	if own != nil {
		return own
	}
	return err
}

// get asks for one path and decodes the answer.
func (c *Client) get(ctx context.Context, path string, into any) error {
	return c.ask(ctx, http.MethodGet, path, nil, decodeInto(into))
}

// ask makes one request and has its answer read.
func (c *Client) ask(ctx context.Context, method, path string, body []byte, read func(*http.Response) error) error {
	err := c.request(ctx, method, path, body, read)
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	if err != nil {
		path, _, _ = strings.Cut(path, "?")
		return fmt.Errorf("ask agent at %s for %s: %w", c.socket, path, err)
	}
	return nil
}

func (c *Client) request(ctx context.Context, method, path string, body []byte, read func(*http.Response) error) error {
	req, err := http.NewRequestWithContext(ctx, method, "http://sockhealth"+path, bytes.NewReader(body))
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
	return read(resp)
}

// refusal turns an answer other than 200 into an error.
func refusal(resp *http.Response) error {
	var e Refused
	if err := json.NewDecoder(resp.Body).Decode(&e); err != nil || e.Error == "" {
		e.Error = http.StatusText(resp.StatusCode)
	}
	switch {
	case resp.StatusCode == http.StatusBadRequest:
		return &told{e.Error, ErrRequest}
	case resp.StatusCode == http.StatusForbidden:
		return fmt.Errorf("%w: %s", ErrPermission, e.Error)
	case resp.StatusCode == http.StatusConflict:
		return &told{e.Error, ErrAmbiguous}
	case resp.StatusCode == http.StatusNotFound && !strings.HasPrefix(e.Error, "no such path"):
		return &told{e.Error, ErrNoSocket}
	case resp.StatusCode == http.StatusUnprocessableEntity && len(e.Errors) > 0:
		return &told{e.Error, e.mistakes()}
	}
	return fmt.Errorf("refused with status %d: %s", resp.StatusCode, e.Error)
}

// told is an error in the agent's own words, which wraps one that callers tell
// apart.
type told struct {
	text string
	is   error
}

func (t *told) Error() string { return t.text }
func (t *told) Unwrap() error { return t.is }

// decodeInto returns what decodes an answer into a value.
func decodeInto(into any) func(*http.Response) error {
	return func(resp *http.Response) error { return decodeSchema(resp, into) }
}

func schemaError(schema int) error {
	return fmt.Errorf("answer has schema %d, this command knows %d [use the agent's own version]", schema, Schema)
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
		return schemaError(version.Schema)
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("decode answer: %w", err)
	}
	return nil
}
