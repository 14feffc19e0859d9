// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"io"
	"net/http"
)

// body is a response's body under the caller's context, which Base does not
// know. The inner context ends with it, which gives its resources back.
type body struct {
	io.ReadCloser
	call   *call
	unhook func() bool
}

// follow returns the response's body, tied to the caller's context.
func (c *call) follow(resp *http.Response) io.ReadCloser {
	// After an upgrade the connection belongs to the caller and no context
	// governs it.
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return resp.Body
	}
	if resp.Body == http.NoBody {
		c.cancel(context.Canceled)
		return resp.Body
	}
	ctx := c.req.Context()
	b := &body{ReadCloser: resp.Body, call: c}
	b.unhook = context.AfterFunc(ctx, func() { c.cancel(context.Cause(ctx)) })
	if c.req.Cancel != nil {
		go func() {
			select {
			case <-c.req.Cancel:
				c.cancel(context.Canceled)
			case <-c.ctx.Done():
			}
		}()
	}
	return b
}

// Read reads the body; it fails with the caller's cause once that has ended.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		if ended := context.Cause(b.call.req.Context()); ended != nil && err != io.EOF {
			err = ended
		}
		b.end()
	}
	return n, err
}

// Close closes the body.
func (b *body) Close() error {
	err := b.ReadCloser.Close()
	b.end()
	return err
}

func (b *body) end() {
	b.unhook()
	b.call.cancel(context.Canceled)
}
