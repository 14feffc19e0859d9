// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"fmt"

	"github.com/sockhealth/sockhealth/internal/kernel"
)

// Features lists those that the programs have where the kernel gives them.
func Features() []kernel.Feature {
	return []kernel.Feature{kernel.Hold, kernel.Scan, kernel.Provoke, kernel.BPFDestroy}
}

// Attached returns the names of the programs that the kernel has attached to
// the cgroup now, in the order of their attachment: setsockopt and sockops.
// A cgroup that was removed took them off without a word.
func (p *Programs) Attached() ([]string, error) {
	var names []string
	for i, l := range p.links {
		info, err := l.Info()
		if err != nil {
			return nil, fmt.Errorf("ask for the attachment of %s: %w", attachments[i], err)
		}
		if c := info.Cgroup(); c != nil && c.CgroupId != 0 {
			names = append(names, attachments[i])
		}
	}
	return names, nil
}
