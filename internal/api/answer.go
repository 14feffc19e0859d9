// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/sockhealth/sockhealth/report"
)

// writeWithin is how long a client may take to read its answer. The clock
// starts when there is one: a judgement takes as long as its probe window.
const writeWithin = 10 * time.Second

// answer writes one JSON value.
func answer(w http.ResponseWriter, status int, value any) {
	body, err := json.Marshal(value)
	if err != nil { // our own types: a NaN, say
		status, body = http.StatusInternalServerError, []byte(`{"error":"the answer cannot be encoded"}`)
	}
	write(w, status, body)
}

// write writes an encoded answer. A client that went away hears nothing.
func write(w http.ResponseWriter, status int, body []byte) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeWithin))
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body)
	_, _ = w.Write([]byte{'\n'})
}

// refuse writes an error.
func refuse(w http.ResponseWriter, status int, format string, args ...any) {
	answer(w, status, report.Error{Error: fmt.Sprintf(format, args...)})
}

// busy writes a 503: the client may come again.
func busy(w http.ResponseWriter, format string, args ...any) {
	w.Header().Set("Retry-After", "1")
	refuse(w, http.StatusServiceUnavailable, format, args...)
}

// tooMany writes a 429: the client asks too much, and may come again.
func tooMany(w http.ResponseWriter, format string, args ...any) {
	w.Header().Set("Retry-After", "1")
	refuse(w, http.StatusTooManyRequests, format, args...)
}

// onlyMethod reports whether the request has the method, and answers if not.
func onlyMethod(w http.ResponseWriter, r *http.Request, method string) bool {
	if r.Method == method {
		return true
	}
	w.Header().Set("Allow", method)
	refuse(w, http.StatusMethodNotAllowed, "%s is not allowed on %s: use %s", shorten(r.Method), path(r), method)
	return false
}
