// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestEachName(t *testing.T) {
	const mountinfo = `22 28 0:21 / /proc rw,nosuid,nodev,noexec,relatime shared:12 - proc proc rw
345 31 0:4 net:[4026532281] /run/netns/blue rw shared:187 - nsfs nsfs rw
346 31 0:4 mnt:[4026532282] /run/snapd/ns/lxd.mnt rw - nsfs nsfs rw
347 31 0:4 net:[4026532283] /run/netns/with\040a\040space\134040 rw - nsfs nsfs rw
348 31 0:44 net:[4026532284] /tmp/a\040-\040nsfs ro - ext4 /dev/vda rw
349 31 0:4 net:[none] /run/netns/x rw - nsfs nsfs rw
350 31 0:4 net:[4026532285] /run/netns/green rw shared:1 master:2 propagate_from:3 - nsfs nsfs rw
short line
`
	var got []string
	err := eachName(strings.NewReader(mountinfo), func(inode uint32, point string) error {
		got = append(got, fmt.Sprint(inode, " ", point))
		return nil
	})
	want := []string{"4026532281 /run/netns/blue", `4026532283 /run/netns/with a space\040`, "4026532285 /run/netns/green"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
	boom := errors.New("boom")
	if err := eachName(strings.NewReader(mountinfo), func(uint32, string) error { return boom }); err != boom {
		t.Errorf("%v, want fn's own error", err)
	}
}
