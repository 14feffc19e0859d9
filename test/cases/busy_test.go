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
)

// busy is how long the agent's threads have run and waited for a processor, all
// together. A kernel that does not count it says nothing, which counts as none.
func (a *agent) busy(t *testing.T) (sum time.Duration) {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", a.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range threads {
		b, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var ran, waited time.Duration
		if _, scanErr := fmt.Sscan(string(b), &ran, &waited); err != nil || scanErr != nil {
			t.Fatal(errors.Join(err, scanErr))
		}
		sum += ran + waited
	}
	return sum
}
