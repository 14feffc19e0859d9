// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// patience is how long a tool has to clean up once it is interrupted.
const patience = 10 * time.Second

// command runs a tool that prints nothing of use.
func command(ctx context.Context, name string, args ...string) error {
	_, err := output(ctx, exec.CommandContext(ctx, name, args...))
	return err
}

// output returns what a tool prints, which was made with the same context; its error
// ends with what the tool said. Once the context ends, the tool and those it started
// are interrupted, as a terminal does, and the error is the context's cause.
func output(ctx context.Context, cmd *exec.Cmd) ([]byte, error) {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error {
		err := unix.Kill(-cmd.Process.Pid, unix.SIGINT)
		if errors.Is(err, unix.ESRCH) {
			return os.ErrProcessDone
		}
		return err
	}
	cmd.WaitDelay = patience
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return out, nil
}
