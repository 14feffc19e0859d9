// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// rootInode is the inode number of the root directory of the cgroup v2
// hierarchy, also when it is seen through a bind mount from inside a private
// cgroup namespace; a cgroup namespace's own root has another (kernel-facts S19).
const rootInode = 1

// CgroupRoot returns the path under which the root of the cgroup v2 hierarchy
// is mounted. A machine without one gets a *MissingError.
func CgroupRoot() (string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", fmt.Errorf("find the cgroup v2 mount: %w", err)
	}
	defer f.Close()
	mounts, err := cgroupMounts(f)
	if err != nil {
		return "", fmt.Errorf("find the cgroup v2 mount: %w", err)
	}
	// One that another mount covers is none: a tmpfs, too, has a root with inode 1.
	mounts = slices.DeleteFunc(mounts, func(path string) bool { return checkCgroup(path) != nil })
	for _, path := range mounts {
		var st unix.Stat_t
		if unix.Stat(path, &st) == nil && st.Ino == rootInode {
			return path, nil
		}
	}
	if len(mounts) > 0 {
		return "", &MissingError{
			What:   fmt.Sprintf("no mount of cgroup v2 shows its root (found %s)", strings.Join(mounts, ", ")),
			Remedy: "bind-mount the host's cgroup v2 mount into this container, or name a cgroup with --cgroup",
		}
	}
	return "", &MissingError{
		What:   "cgroup v2 is not mounted",
		Remedy: "mount it: mount -t cgroup2 none /sys/fs/cgroup",
	}
}

// cgroupMounts returns the mount points of type cgroup2 in mountinfo(5) format.
func cgroupMounts(r io.Reader) ([]string, error) {
	var out []string
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		before, after, ok := strings.Cut(lines.Text(), " - ")
		fields := strings.Fields(before)
		if !ok || len(fields) < 5 || !strings.HasPrefix(after, "cgroup2 ") {
			continue
		}
		out = append(out, unescape(fields[4]))
	}
	return out, lines.Err()
}

// unescape undoes the kernel's octal escapes of space, tab, newline, backslash.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// checkCgroup refuses what is no directory of the cgroup v2 hierarchy.
func checkCgroup(path string) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return fmt.Errorf("open cgroup %q: %w", path, err)
	}
	switch fs.Type {
	case unix.CGROUP2_SUPER_MAGIC:
		return nil
	case unix.CGROUP_SUPER_MAGIC:
		return &MissingError{
			What:   fmt.Sprintf("%q is a cgroup v1 path", path),
			Remedy: "name a directory below the cgroup v2 mount; v1 controllers take no BPF programs",
		}
	}
	return &MissingError{
		What:   fmt.Sprintf("%q is not below a cgroup v2 mount", path),
		Remedy: "name a directory below it: findmnt -t cgroup2",
	}
}
