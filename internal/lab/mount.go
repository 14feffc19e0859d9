// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrNoCgroup2 says that no cgroup v2 hierarchy is mounted.
var ErrNoCgroup2 = errors.New("no cgroup v2 mount")

// cgroup2Root is the inode number of the hierarchy's real root, also when seen
// through a bind mount from a private cgroup namespace (kernel-facts S19).
const cgroup2Root = 1

// mountPoint is where a part of the cgroup v2 hierarchy is mounted.
type mountPoint struct {
	point string
	root  string // the mounted part, as /proc/self/cgroup names it
}

// cgroupMount finds the cgroup v2 mount, the one of the real root if there are
// several. It may stand beside v1 (kernel-facts S12).
func cgroupMount() (mountPoint, error) {
	info, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return mountPoint{}, fmt.Errorf("find cgroup v2 mount: %w", err)
	}
	var found []mountPoint
	for _, m := range cgroup2Mounts(string(info)) {
		var st unix.Stat_t
		if unix.Stat(m.point, &st) != nil {
			continue // covered by another mount
		}
		if st.Ino == cgroup2Root {
			return m, nil
		}
		found = append(found, m)
	}
	if len(found) == 0 {
		return mountPoint{}, fmt.Errorf("find cgroup v2 mount: %w", ErrNoCgroup2)
	}
	return found[0], nil
}

// cgroup2Mounts reads mountinfo, proc_pid_mountinfo(5):
//
//	41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw
func cgroup2Mounts(info string) []mountPoint {
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	var found []mountPoint
	for line := range strings.Lines(info) {
		own, fstype, ok := strings.Cut(line, " - ")
		fields := strings.Fields(own)
		if !ok || len(fields) < 6 || !strings.HasPrefix(fstype, "cgroup2 ") {
			continue
		}
		found = append(found, mountPoint{root: unescape.Replace(fields[3]), point: unescape.Replace(fields[4])})
	}
	return found
}

// ownCgroup returns the folder of the cgroup that this process is in.
func ownCgroup(m mountPoint) (string, error) {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", fmt.Errorf("find own cgroup: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		path, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::")
		if !ok {
			continue
		}
		rel, err := filepath.Rel(m.root, path)
		if err != nil || !filepath.IsLocal(rel) {
			return "", fmt.Errorf("find own cgroup: %s is outside the mounted %s", path, m.root)
		}
		return filepath.Join(m.point, rel), nil
	}
	return "", fmt.Errorf("find own cgroup: %w", ErrNoCgroup2)
}
