// SPDX-License-Identifier: Apache-2.0

package cases

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// waited is how long that thread of the agent's has waited for a processor which has most:
// next to nothing where the machine has nothing else to do. A kernel that does not count it
// says nothing, which counts as none.
func (a *agent) waited(t *testing.T) (most time.Duration) {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", a.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range threads {
		b, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // it has ended
		}
		var ran, waited time.Duration
		if _, scanErr := fmt.Sscan(string(b), &ran, &waited); err != nil || scanErr != nil {
			t.Fatal(errors.Join(err, scanErr))
		}
		most = max(most, waited)
	}
	return most
}
