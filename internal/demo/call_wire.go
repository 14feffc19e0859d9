// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"strings"
	"time"
)

// A channel carries calls as lines of JSON. They may overtake each other.
type (
	callRequest struct {
		ID   int           `json:"id"`
		Work time.Duration `json:"work_ns"`
		Fail bool          `json:"fail"`
		// Body makes the packet longer than any without payload, so that a
		// router can tell them apart.
		Body string `json:"body"`
	}
	callAnswer struct {
		ID     int    `json:"id"`
		Server string `json:"server"`
		Err    string `json:"err,omitempty"`
	}
)

// bareLen is the longest IP packet without TCP payload, callBody what no
// request fits into it with.
const bareLen = 100

var callBody = strings.Repeat("work ", bareLen/5)
