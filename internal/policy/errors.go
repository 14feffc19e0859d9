// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrTooLarge is returned by Load for a file above MaxSize, whatever its
// content.
var ErrTooLarge = errors.New("policy file is too large")

// Error is one mistake in a policy file.
type Error struct {
	File string
	// Line and Column count from 1; columns are characters, not bytes. Both
	// are 0 where the mistake concerns the file as a whole.
	Line, Column int
	// Message names the value and what to write instead.
	Message string
}

// Error returns "file:line:column: message".
func (e *Error) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %s", e.File, e.Message)
	}
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Message)
}

// Errors are all mistakes of a policy file, in the order of their positions.
// It is never empty.
type Errors struct {
	List []*Error
}

// Error returns one line for each mistake.
func (e *Errors) Error() string {
	lines := make([]string, len(e.List))
	for i, one := range e.List {
		lines[i] = one.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap gives errors.As access to each *Error.
func (e *Errors) Unwrap() []error {
	errs := make([]error, len(e.List))
	for i, one := range e.List {
		errs[i] = one
	}
	return errs
}

func (e *Errors) sort() {
	slices.SortStableFunc(e.List, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
}
