// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/sockhealth/sockhealth/internal/policy"
)

// Reloaded is the answer to POST /v1/reload: the policy that is in force now.
type Reloaded struct {
	Schema int `json:"schema"` // set by the server
	PolicyFile
}

// Refused is the answer where the file is not right: nothing has changed.
type Refused struct {
	Error string `json:"error"`
	// Errors has every mistake, in the order of the file.
	Errors []Mistake `json:"errors"`
}

// Mistake is one mistake in a policy file. Line and Column count from 1, and are
// 0 where it concerns the file as a whole.
type Mistake struct {
	File    string `json:"file"`
	Line    int    `json:"line"`
	Column  int    `json:"column"`
	Message string `json:"message"`
}

// refusedFile returns what is wrong with the policy file, nil where err is about
// something else.
func refusedFile(err error) *policy.Errors {
	var wrong *policy.Errors
	var path *fs.PathError
	switch {
	case errors.As(err, &wrong):
		return wrong
	case errors.Is(err, policy.ErrTooLarge), errors.As(err, &path):
		return &policy.Errors{List: []*policy.Error{{Message: err.Error()}}}
	}
	return nil
}

func newRefused(e *policy.Errors) Refused {
	first := e.List[0].Error()
	if e.List[0].File == "" { // could not be read at all
		first = e.List[0].Message
	}
	r := Refused{
		Error:  fmt.Sprintf("the policy file is refused, and the policy in force stays: %v", first),
		Errors: make([]Mistake, 0, len(e.List)),
	}
	if n := len(e.List) - 1; n > 0 {
		r.Error += fmt.Sprintf(" (and %d more)", n)
	}
	for _, m := range e.List {
		r.Errors = append(r.Errors, Mistake{File: m.File, Line: m.Line, Column: m.Column, Message: m.Message})
	}
	return r
}

// mistakes is the reverse, for the client.
func (r *Refused) mistakes() *policy.Errors {
	e := &policy.Errors{}
	for _, m := range r.Errors {
		e.List = append(e.List, &policy.Error{File: m.File, Line: m.Line, Column: m.Column, Message: m.Message})
	}
	return e
}
