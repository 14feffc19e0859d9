// SPDX-License-Identifier: Apache-2.0

// Package container reads the path of a cgroup as container runtimes and the kubelet
// write it: which container that is, and which pod.
//
// It knows the forms of containerd, CRI-O, Docker, Podman and LXC, with cgroupfs and
// with systemd, and says nothing about all others: a wrong name is worse than none. It
// does not ask a runtime, and knows no names, images or labels. It is pure: no
// privilege, nothing of the kernel. Which cgroup has a path is package census.
package container
