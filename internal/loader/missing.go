// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
)

// The errors that callers tell apart.
var (
	// ErrUnsupported says that the running kernel lacks what a call needs.
	ErrUnsupported = errors.New("not supported by this kernel")
	// ErrLate says that a walk came to a socket after what it was to do there was
	// out of date.
	ErrLate = errors.New("too late: the walk over the sockets was held up")
	// ErrWalking says that a walk over the sockets has not come to its end.
	ErrWalking = errors.New("a walk over the sockets is held up")
	// ErrClosed says that the programs were closed.
	ErrClosed = errors.New("programs are closed")
	// ErrHeld says that another agent works here.
	ErrHeld = errors.New("held by another agent")
	// ErrNotPins says that a directory of bpffs is none for an agent's pins.
	ErrNotPins = errors.New("no directory for an agent's pins")
	// ErrAttached says that programs of ours that others hold are attached.
	ErrAttached = errors.New("another set of sockhealth's programs is attached there")
)

// MissingError says what this machine lacks to run the agent, and the remedy.
type MissingError struct {
	What   string // a clause: "the kernel has no BTF (/sys/kernel/btf/vmlinux)"
	Remedy string // an imperative: "run a kernel with CONFIG_DEBUG_INFO_BTF=y"
	Err    error  // where an error told it, else nil
}

// Error returns one sentence.
func (e *MissingError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("%s: %v (%s)", e.What, e.Err, e.Remedy)
	}
	return fmt.Sprintf("%s (%s)", e.What, e.Remedy)
}

// Unwrap returns Err.
func (e *MissingError) Unwrap() error { return e.Err }
