// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"testing"

	"go.uber.org/goleak"
)

// TestMain finds goroutines that a test leaves behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
