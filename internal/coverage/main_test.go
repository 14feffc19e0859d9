// SPDX-License-Identifier: Apache-2.0

package coverage

import (
	"log"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain makes the test binary the canary's process, where it is called so.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == CanaryCommand {
		if err := CanaryProcess(os.Stdin, os.Stdout); err != nil {
			log.Fatal(err)
		}
		return
	}
	goleak.VerifyTestMain(m)
}
