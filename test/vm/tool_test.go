// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"testing"
	"time"
)

// A tool that is interrupted cleans up, and so does what it started.
func TestToolInterrupted(t *testing.T) {
	// Where interrupts are ignored, tools would ignore them too.
	ctx, stop := signal.NotifyContext(t.Context(), os.Interrupt)
	defer stop()
	ctx, cancel := context.WithCancelCause(ctx)
	dir, interrupted := t.TempDir(), errors.New("interrupted")
	cmd := exec.CommandContext(ctx, "sh", "-c", `trap 'rm outer; exit 1' INT
>outer
sh -c "trap 'rm inner; exit 1' INT; >inner; while :; do sleep 0.05; done"`)
	cmd.Dir = dir
	there := func() []string {
		names, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil {
			t.Error(err)
		}
		return names
	}
	go func() {
		for len(there()) < 2 && ctx.Err() == nil {
			time.Sleep(10 * time.Millisecond)
		}
		cancel(interrupted)
	}()
	if _, err := output(ctx, cmd); err != interrupted {
		t.Errorf("%v, want %v alone", err, interrupted)
	}
	if left := there(); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// A tool that fails is told with what it said.
func TestCommandFails(t *testing.T) {
	err := command(t.Context(), "sh", "-c", "echo no such thing >&2; exit 4")
	if err == nil || err.Error() != "sh -c echo no such thing >&2; exit 4: exit status 4: no such thing" {
		t.Errorf("got %v", err)
	}
}
