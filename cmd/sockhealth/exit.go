// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/sockhealth/sockhealth/internal/api"
	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/report"
)

// Exit codes, the same for every command.
const (
	exitOK          = 0
	exitFailed      = 1 // a check failed, the policy is bad, or anything else
	exitUsage       = 2
	exitUnreachable = 3 // no agent answers
	exitMissing     = 4 // a privilege or a kernel feature is missing
)

// usageError says that the command line is at fault.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error {
	return usageError{fmt.Errorf(format, args...)}
}

// errSaid is for commands that have written their messages themselves.
var errSaid = errors.New("said already")

// exitCode returns the exit code of a command's error.
func exitCode(err error) int {
	var usage usageError
	var missing *loader.MissingError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &usage), errors.Is(err, loader.ErrNotPins), errors.Is(err, api.ErrRequest):
		return exitUsage
	case errors.As(err, &missing),
		errors.Is(err, loader.ErrUnsupported),
		errors.Is(err, netns.ErrPermission),
		errors.Is(err, api.ErrPermission),
		errors.Is(err, lab.ErrNoCgroup2),
		errors.Is(err, errMissing),
		errors.Is(err, fs.ErrPermission):
		return exitMissing
	case errors.Is(err, api.ErrUnreachable), errors.Is(err, report.ErrUnreachable):
		return exitUnreachable
	}
	return exitFailed
}
