// SPDX-License-Identifier: Apache-2.0

// Package census knows which container and which pod a cgroup is, by the cgroup's id,
// which is all that a socket tells of it.
//
// The id is the inode number of the cgroup's directory; the kernel gives none twice
// since boot. It is opened by that number (open_by_handle_at), which takes as long
// however many cgroups there are. A cgroup that is gone cannot be opened any more,
// while sockets of it may still end: those of containers are remembered, and found by
// a walk over the hierarchy now and then. One that lived between two walks alone, and
// that nobody asked about meanwhile, has no name. Nothing is asked of a runtime.
//
// The hierarchy is cgroup v2. Beside v1 it may hold systemd's units alone, or nothing:
// the sockets of a container are then in the cgroup of whoever started it, which is no
// container and has no name here.
//
// Privileges: CAP_DAC_READ_SEARCH over the first user namespace to open by number;
// without it a walk finds what is there. Kernel floor: 5.5.
//
// Goroutines: all methods may be called from any; the package starts none. Watch runs
// in its caller's.
package census
