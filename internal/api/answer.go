// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/sockhealth/sockhealth/report"
)

// writeWithin is how long a client may take to read its answer. The clock
// starts when there is one: a judgement takes as long as its probe window.
const writeWithin = 10 * time.Second

// answer writes one JSON value. A client that went away hears nothing.
func answer(w http.ResponseWriter, status int, value any) {
	body, err := json.Marshal(value)
	if err != nil { // our own types: a NaN, say
		status, body = http.StatusInternalServerError, []byte(`{"error":"the answer cannot be encoded"}`)
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeWithin))
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n'))
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

// onlyMethod reports whether the request has the method, and answers if not.
func onlyMethod(w http.ResponseWriter, r *http.Request, method string) bool {
	if r.Method == method {
		return true
	}
	w.Header().Set("Allow", method)
	refuse(w, http.StatusMethodNotAllowed, "%s is not allowed on %s: use %s", shorten(r.Method), r.URL.Path, method)
	return false
}

// noQuery reports whether the request has no query, and answers if it has.
// later names the parameters that a later version will know.
func noQuery(w http.ResponseWriter, r *http.Request, later ...string) bool {
	if r.URL.RawQuery == "" {
		return true
	}
	name, _, _ := strings.Cut(r.URL.RawQuery, "&")
	name, _, _ = strings.Cut(name, "=")
	for _, l := range later {
		if name == l {
			refuse(w, http.StatusBadRequest, "query parameter %q is not supported yet: leave it out", l)
			return false
		}
	}
	refuse(w, http.StatusBadRequest, "unknown query parameter %s: %s takes none", quote(name), r.URL.Path)
	return false
}
