// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"cmp"
	"fmt"

	"golang.org/x/sys/unix"
)

// Release is a version of Linux; the patch level says nothing about abilities.
type Release struct{ Major, Minor int }

// Floor is the first release that the agent runs on.
func Floor() Release { return Release{5, 10} }

// ParseRelease reads what uname -r prints: "6.1.0-57-cloud-amd64".
func ParseRelease(s string) (Release, error) {
	var r Release
	if _, err := fmt.Sscanf(s, "%d.%d", &r.Major, &r.Minor); err != nil {
		return Release{}, fmt.Errorf("read kernel release %q: %w", s, err)
	}
	return r, nil
}

// Running returns the running kernel's release, and its whole name.
func Running() (Release, string, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return Release{}, "", fmt.Errorf("ask for the kernel release: %w", err)
	}
	name := unix.ByteSliceToString(u.Release[:])
	r, err := ParseRelease(name)
	return r, name, err
}

// Before reports whether r is older than other.
func (r Release) Before(other Release) bool {
	return cmp.Or(cmp.Compare(r.Major, other.Major), cmp.Compare(r.Minor, other.Minor)) < 0
}

// String returns "5.10".
func (r Release) String() string { return fmt.Sprintf("%d.%d", r.Major, r.Minor) }
