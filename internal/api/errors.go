// SPDX-License-Identifier: Apache-2.0

package api

import "errors"

// The errors that callers tell apart.
var (
	// ErrUnreachable says that no agent answers on the admin socket.
	ErrUnreachable = errors.New("agent unreachable")
	// ErrPermission says that only root may ask.
	ErrPermission = errors.New("permission denied")
	// ErrNoSocket says that no socket is what the client named.
	ErrNoSocket = errors.New("no such socket")
	// ErrAmbiguous says that several are.
	ErrAmbiguous = errors.New("several such sockets")
	// ErrRequest says that what is asked for is at fault.
	ErrRequest = errors.New("bad request")
	// ErrHeld says that another agent holds the run directory.
	ErrHeld = errors.New("run directory held by another agent")
)
