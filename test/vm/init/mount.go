// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// mountAll mounts what a Linux system has. /tmp and /run stay folders of the initial
// file system, which is a tmpfs: the source tree may stand below them.
func mountAll() error {
	for _, m := range [...]struct{ source, target, kind, data string }{
		{"proc", "/proc", "proc", ""},
		{"sysfs", "/sys", "sysfs", ""},
		{"devtmpfs", "/dev", "devtmpfs", ""},
		{"cgroup2", cgroupRoot, "cgroup2", ""},
		{"bpf", "/sys/fs/bpf", "bpf", "mode=0700"},
		{"debugfs", "/sys/kernel/debug", "debugfs", ""},
		{"tracefs", "/sys/kernel/tracing", "tracefs", ""},
	} {
		if err := os.MkdirAll(m.target, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.source, m.target, m.kind, 0, m.data); err != nil && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	if err := os.MkdirAll("/run", 0o755); err != nil {
		return err
	}
	if err := os.MkdirAll("/tmp", 0o755); err != nil {
		return err
	}
	return os.Chmod("/tmp", os.ModeSticky|0o777)
}
