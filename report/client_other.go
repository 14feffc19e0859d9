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

func send(context.Context, string, string, string, *Request, any) (int, error) {
	return 0, fmt.Errorf("%w on %s", errors.ErrUnsupported, runtime.GOOS)
}
