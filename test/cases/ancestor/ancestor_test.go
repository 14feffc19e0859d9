// SPDX-License-Identifier: Apache-2.0

package ancestor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A build that is interrupted says so, and leaves nothing.
func TestInterrupted(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	begun := func() bool {
		found, err := filepath.Glob(filepath.Join(dir, "sockhealth-older-*", "go-build*", "b*"))
		if err != nil {
			t.Error(err)
		}
		return len(found) > 0
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	interrupted := errors.New("interrupted")
	go func() {
		for !begun() && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		cancel(interrupted)
	}()
	module, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	err = Build(ctx, module, filepath.Join(t.TempDir(), "agent"))
	if !errors.Is(err, interrupted) {
		t.Errorf("got %v", err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
