// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// folders are those that this program writes to.
type folders struct {
	cache string // of the kernels
	// run is below the cache, of this process alone, and goes with it.
	run  string
	lock *os.File // of run: while it is open, this process lives
}

// runPrefix begins the names of processes' folders in the cache folder.
const runPrefix = "run."

// open makes the cache folder, removes from it what processes left behind that were
// killed, and makes this process's folder.
func (f *folders) open() error {
	if err := os.MkdirAll(f.cache, 0o755); err != nil {
		return err
	}
	// Until our folder has its lock, another process would take it for left behind.
	all, err := lock(f.cache, unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer all.Close()
	if err := sweep(f.cache); err != nil {
		return err
	}
	if f.run, err = os.MkdirTemp(f.cache, runPrefix); err != nil {
		return err
	}
	if f.lock, err = lock(f.run, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return errors.Join(err, os.RemoveAll(f.run))
	}
	return nil
}

// close removes the process's folder; without open it does nothing.
func (f *folders) close() error {
	if f.lock == nil {
		return nil
	}
	return errors.Join(os.RemoveAll(f.run), f.lock.Close())
}

// sweep removes the folders of processes that are no more. A lock tells that also of
// those of other users, and in other containers.
func sweep(cache string) error {
	entries, err := os.ReadDir(cache)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), runPrefix) {
			continue
		}
		path := filepath.Join(cache, e.Name())
		free, err := lock(path, unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case errors.Is(err, unix.EWOULDBLOCK), errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
			continue // lives, has just gone, or is not ours to remove
		case err != nil:
			return err
		}
		if err := errors.Join(os.RemoveAll(path), free.Close()); err != nil {
			return err
		}
	}
	return nil
}

// lock locks a folder until the file that it returns is closed, by whatever end of
// the process that is.
func lock(dir string, how int) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), how); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return f, nil
}

// cacheDefault is the user's cache folder, where there is one.
func cacheDefault() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		dir = "/var/cache"
	}
	return filepath.Join(dir, "sockhealth-vm")
}
