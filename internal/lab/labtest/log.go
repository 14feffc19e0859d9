// SPDX-License-Identifier: Apache-2.0

package labtest

import (
	"log/slog"
	"sync"
	"testing"
)

// logKept is how much of a log Log keeps, at least.
const logKept = 64 << 10

// Log returns a logger whose last lines the test prints when it fails. To print all of
// them costs more than most tests do where the output of a guest is a serial line.
func Log(t testing.TB) *slog.Logger {
	k := &kept{}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of the log:\n%s", k)
		}
	})
	return slog.New(slog.NewTextHandler(k, nil))
}

// kept is the end of what was written, a line or more at each Write.
type kept struct {
	mu           sync.Mutex
	before, last []byte // each begins with a line
}

// Write never fails.
func (k *kept) Write(line []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.last) >= logKept {
		k.before, k.last = k.last, k.before[:0]
	}
	k.last = append(k.last, line...)
	return len(line), nil
}

// String returns the end.
func (k *kept) String() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return string(k.before) + string(k.last)
}
