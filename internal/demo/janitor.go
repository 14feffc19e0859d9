// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// janitorTimeout bounds the wait for the last processes of a killed demo.
const janitorTimeout = 10 * time.Second

// What the janitor is told, one a line: a kind and a path.
const (
	keepCgroup = "cgroup "
	keepDir    = "dir "
)

// Janitor is the main function of the process that cleans up after a demo that
// could not do it itself. It reads from standard input what there is, and
// removes what is left of it when the input ends, as it does when the demo is
// killed.
func Janitor(_ context.Context, _ []string) error {
	// It has to outlive what ends the demo.
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	return sweep(os.Stdin, janitorTimeout)
}

// sweep removes what r names, the last first.
func sweep(r io.Reader, timeout time.Duration) error {
	var paths []string
	input := bufio.NewScanner(r)
	for input.Scan() {
		paths = append(paths, input.Text())
	}
	errs := []error{input.Err()}
	deadline := time.Now().Add(timeout)
	for i := len(paths) - 1; i >= 0; i-- {
		if path, ok := strings.CutPrefix(paths[i], keepCgroup); ok {
			errs = append(errs, removeCgroup(path, deadline))
		} else if path, ok := strings.CutPrefix(paths[i], keepDir); ok {
			errs = append(errs, os.RemoveAll(path))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("clean up after the demo: %w", err)
	}
	return nil
}

// removeCgroup waits for the end of the processes inside, which the kernel has
// killed with the demo.
func removeCgroup(path string, deadline time.Time) error {
	for {
		err := os.Remove(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}
