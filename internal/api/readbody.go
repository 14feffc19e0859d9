// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"io"
	"net"
	"net/http"
	"time"
)

const maxBody = 64 << 10

// readBody reads and decodes the body, and answers where it is at fault.
func readBody[T any](w http.ResponseWriter, r *http.Request, parse func([]byte) (T, error)) (value T, ok bool) {
	data, ok := wholeBody(w, r)
	if !ok {
		return value, false
	}
	value, err := parse(data)
	if err != nil {
		refuse(w, http.StatusBadRequest, "%v", err)
		return value, false
	}
	return value, true
}

// wholeBody reads the body to its end, and then lets the request take as long as
// there is something to wait for: the server's deadline for the whole of it
// would end the context. A handler that waits has to read even a body that it
// does not want.
//
// A body that is at fault is answered and costs the connection, and the deadline
// stays: before the answer net/http reads what is left of a body, and without a
// deadline that takes as long as the client likes.
func wholeBody(w http.ResponseWriter, r *http.Request) ([]byte, bool) {
	data, err := io.ReadAll(http.MaxBytesReader(bare(w), r.Body, maxBody))
	if err == nil {
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
		return data, true
	}
	w.Header().Set("Connection", "close")
	var tooLong *http.MaxBytesError
	var timeout net.Error
	switch {
	case errors.As(err, &tooLong):
		refuse(w, http.StatusRequestEntityTooLarge, "the body is over %d KiB: it is one small JSON object", maxBody>>10)
	case errors.As(err, &timeout) && timeout.Timeout():
		refuse(w, http.StatusRequestTimeout, "the body did not come within %s", readWithin)
	default:
		refuse(w, http.StatusBadRequest, "the body cannot be read: %v", err)
	}
	return nil, false
}
