// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package report

import (
	"context"
	"errors"
	"fmt"
	"runtime"
)

// supported says that this system can have an agent.
const supported = false

func post(context.Context, string, Request) (*Response, error) {
	return nil, fmt.Errorf("%w on %s", errors.ErrUnsupported, runtime.GOOS)
}
