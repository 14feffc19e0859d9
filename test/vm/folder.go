// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// runPrefix begins the names of this process's folders in the cache folder.
func runPrefix() string { return fmt.Sprintf("run-%d-", os.Getpid()) }

// openCache makes the cache folder, and removes from it what processes left
// behind that were killed.
func openCache(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		rest, ok := strings.CutPrefix(e.Name(), "run-")
		if !ok {
			continue
		}
		pid, err := strconv.Atoi(rest[:max(0, strings.Index(rest, "-"))])
		if err != nil || unix.Kill(pid, 0) == nil {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// cacheDefault is the user's cache folder, where there is one.
func cacheDefault() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		dir = "/var/cache"
	}
	return filepath.Join(dir, "sockhealth-vm")
}
