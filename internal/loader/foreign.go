// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Foreign reports whether programs that are not ours see the sockets made in a
// cgroup, attached to it or above: sockops and setsockopt programs, which can set
// options that ours do not see. A cgroup that is gone has none.
func (p *Programs) Foreign(cgroup string) (bool, error) {
	dir, err := os.Open(cgroup)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for programs at cgroup %q: %w", cgroup, err)
	}
	defer dir.Close()
	for _, a := range at(p.sockops.ShSetsockopt, p.sockops.ShSockops) {
		there, err := link.QueryPrograms(link.QueryOptions{
			Target: int(dir.Fd()), Attach: a.typ, QueryFlags: unix.BPF_F_QUERY_EFFECTIVE,
		})
		if err != nil {
			return false, fmt.Errorf("look for programs at cgroup %q: %w", cgroup, err)
		}
		for _, one := range there.Programs {
			if name, ok := programName(one.ID); ok && !ourName(name) && !isNested(name) {
				return true, nil
			}
		}
	}
	return false, nil
}
