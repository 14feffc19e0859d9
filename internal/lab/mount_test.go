// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCgroup2Mounts(t *testing.T) {
	const info = `31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime shared:9 master:3 - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
42 31 0:38 /pod/a\040b /mnt/with\040space rw,relatime shared:7 - cgroup2 none rw,nsdelegate
short - cgroup2 cgroup2 rw
no separator at all
`
	want := []mountPoint{
		{point: "/sys/fs/cgroup/unified", root: "/"},
		{point: "/mnt/with space", root: "/pod/a b"},
	}
	if diff := cmp.Diff(want, cgroup2Mounts(info), cmp.AllowUnexported(mountPoint{})); diff != "" {
		t.Error(diff)
	}
}
