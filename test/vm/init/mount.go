// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// mountAll mounts what a Linux system has.
func mountAll() error {
	for _, m := range [...]struct{ source, target, kind, data string }{
		{"proc", "/proc", "proc", ""},
		{"sysfs", "/sys", "sysfs", ""},
		{"devtmpfs", "/dev", "devtmpfs", ""},
		{"cgroup2", cgroupRoot, "cgroup2", ""},
		{"bpf", "/sys/fs/bpf", "bpf", "mode=0700"},
		{"debugfs", "/sys/kernel/debug", "debugfs", ""},
		{"tracefs", "/sys/kernel/tracing", "tracefs", ""},
		{"tmpfs", "/tmp", "tmpfs", ""},
		{"tmpfs", "/run", "tmpfs", ""},
	} {
		if err := os.MkdirAll(m.target, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.source, m.target, m.kind, 0, m.data); err != nil && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	return nil
}
