// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
)

// Check says why who connects to a socket by its name (ReportSocket, AdminSocket) does not
// reach this agent: the name is gone, or leads to something else. It is nil where they do,
// and it does not block.
func (d *RunDir) Check(name string) error {
	d.mu.Lock()
	have := d.ours[name]
	d.mu.Unlock()
	path := filepath.Join(d.path, name)
	st, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%q was removed", path)
	case err != nil:
		return fmt.Errorf("look at socket: %w", err)
	case have == nil || !os.SameFile(st, have):
		return fmt.Errorf("%q was replaced: it is not this agent's", path)
	}
	return nil
}

// Again makes a socket once more whose name does not lead to it any more, and the directory
// with its lock where that is gone, too. The listener before it is the caller's to close.
func (d *RunDir) Again(name string) (*net.UnixListener, error) {
	if err := d.holdAgain(); err != nil {
		return nil, err
	}
	if name == AdminSocket {
		return d.ListenAdmin()
	}
	return d.ListenReports()
}

// holdAgain takes the lock of the directory that has the name now, where that is another
// or has another lock.
func (d *RunDir) holdAgain() error {
	held, err := d.lock.Stat()
	if err != nil {
		return fmt.Errorf("look at the lock of run directory %q: %w", d.path, err)
	}
	if named, err := os.Lstat(d.lock.Name()); err == nil && os.SameFile(held, named) {
		return nil
	}
	next, err := OpenRunDir(d.path)
	if err != nil {
		return err
	}
	before := d.lock
	d.lock = next.lock
	return before.Close()
}

// own notes that a name leads to a socket that was made just now.
func (d *RunDir) own(name string) error {
	st, err := os.Stat(filepath.Join(d.path, name))
	if err != nil {
		return fmt.Errorf("look at socket: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ours == nil {
		d.ours = make(map[string]fs.FileInfo)
	}
	d.ours[name] = st
	return nil
}
