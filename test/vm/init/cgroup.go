// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// cgroupRoot is where mountAll mounts the hierarchy of cgroup v2.
const cgroupRoot = "/sys/fs/cgroup"

// giveControllers gives the cgroups below the root every controller that it can
// give, as a service manager does.
func giveControllers() error {
	there, err := os.ReadFile(filepath.Join(cgroupRoot, "cgroup.controllers"))
	if err != nil {
		return fmt.Errorf("give controllers on: %w", err)
	}
	for _, c := range strings.Fields(string(there)) {
		// One at a time: what one kernel cannot give is no reason to give none.
		if err := os.WriteFile(filepath.Join(cgroupRoot, "cgroup.subtree_control"), []byte("+"+c), 0); err != nil {
			logf("give controller %s on: %v", c, err)
		}
	}
	return nil
}
