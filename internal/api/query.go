// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxWait is how long a client may have the server wait for a judgement.
const maxWait = time.Minute

// query decodes the query of a request, or answers where it is at fault: no
// parameter may be given twice, and only these are known.
func query(w http.ResponseWriter, r *http.Request, known ...string) (url.Values, bool) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		refuse(w, http.StatusBadRequest, "the query is malformed: %v", err)
		return nil, false
	}
	names := make([]string, 0, len(values))
	for name := range values {
		names = append(names, name)
	}
	slices.Sort(names) // one error out of several, always the same
	for _, name := range names {
		switch {
		case !slices.Contains(known, name):
			refuse(w, http.StatusBadRequest, "unknown query parameter %s: %s takes %s", quote(name), path(r), takes(known))
			return nil, false
		case len(values[name]) > 1:
			refuse(w, http.StatusBadRequest, "query parameter %s is given twice", quote(name))
			return nil, false
		}
	}
	return values, true
}

// takes lists parameters.
func takes(known []string) string {
	switch n := len(known); n {
	case 0:
		return "none"
	case 1:
		return known[0]
	default:
		return strings.Join(known[:n-1], ", ") + " and " + known[n-1]
	}
}

// path returns the request's path, for messages.
func path(r *http.Request) string {
	if strings.HasPrefix(r.URL.Path, judgementsPath) {
		return judgementsPath + "ID"
	}
	return r.URL.Path
}

// waitOf returns how long to wait for a judgement, below 0 where the client does
// not say, or answers where the query is at fault.
func waitOf(w http.ResponseWriter, r *http.Request) (time.Duration, bool) {
	values, ok := query(w, r, "wait")
	if !ok {
		return 0, false
	}
	if !values.Has("wait") {
		return -1, true
	}
	ms, err := strconv.ParseUint(values.Get("wait"), 10, 32)
	if wait := time.Duration(ms) * time.Millisecond; err == nil && wait <= maxWait {
		return wait, true
	}
	refuse(w, http.StatusBadRequest, "query parameter \"wait\" is %s, want milliseconds from 0 to %d", quote(values.Get("wait")), maxWait.Milliseconds())
	return 0, false
}

// parseNetns reads the inode number of a network namespace.
func parseNetns(what, s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%s is %s, want a namespace's inode number, as in /proc/PID/ns/net", what, quote(s))
	}
	return uint32(n), nil
}
