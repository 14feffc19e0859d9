// SPDX-License-Identifier: Apache-2.0

package container

import "strings"

// ID names a container. The zero value names none.
type ID struct {
	// Container is the runtime's own id, 64 hexadecimal digits; of LXC the name.
	Container string
	// Pod is the UID of the Kubernetes pod, as the API server writes it: a UUID,
	// or of a static pod 32 hexadecimal digits. "" outside Kubernetes.
	Pod string
}

// Parse reads the path of a cgroup below the root of the hierarchy, whether the
// runtime makes the directories itself (cgroupfs) or has systemd make units.
//
// Where containers stand in containers it is the innermost pod, and the container
// of that pod; where there is no pod the innermost container. What a runtime keeps
// beside its containers (conmon, the monitors of LXC) is none.
func Parse(path string) ID {
	var id ID
	kubelet, before := false, ""
	for part := range strings.SplitSeq(path, "/") {
		if pod := podOf(part, kubelet); pod != "" {
			id = ID{Pod: pod, Container: joined(part)}
		} else if monitors(part) {
			return id
		} else if c := containerOf(part, before); c != "" && (id.Pod == "" || id.Container == "") {
			id.Container = c
		}
		kubelet = kubelet || part == "kubepods"
		before = part
	}
	return id
}

// podOf returns the UID of the pod that a directory is of:
//
//	kubepods-burstable-pod7ec1d1a3_5d2c_4b8e_9b07_0c1f1d6a2b3c.slice   systemd
//	pod7ec1d1a3-5d2c-4b8e-9b07-0c1f1d6a2b3c, below kubepods            cgroupfs
func podOf(part string, kubelet bool) string {
	unit, _, _ := strings.Cut(part, ":")
	if slice, ok := strings.CutSuffix(unit, ".slice"); ok {
		at := strings.LastIndex(slice, "-pod")
		if at < 0 || !strings.HasSuffix(slice[:at], "kubepods") && !strings.Contains(slice[:at], "kubepods-") {
			return ""
		}
		return uid(strings.ReplaceAll(slice[at+len("-pod"):], "_", "-"))
	}
	if name, ok := strings.CutPrefix(part, "pod"); ok && kubelet {
		return uid(name)
	}
	return ""
}

// joined returns the container that stands in one name with the pod's slice: what
// runc without systemd makes of the path that a kubelet with systemd gives it,
// SLICE:PREFIX:ID.
func joined(part string) string {
	if at := strings.LastIndexByte(part, ':'); at >= 0 && isID(part[at+1:]) {
		return part[at+1:]
	}
	return ""
}

// containerOf returns the container that a directory is of, which stands in the
// directory before:
//
//	cri-containerd-ID.scope, crio-ID.scope, docker-ID.scope, libpod-ID.scope   systemd
//	ID, libpod-ID, libpod-payload-ID                                            cgroupfs
//	lxc.payload.NAME; NAME below lxc                                            LXC
func containerOf(part, before string) string {
	if name, ok := strings.CutPrefix(part, "lxc.payload."); ok {
		return nameOf(name)
	}
	if before == "lxc" {
		return nameOf(part)
	}
	name := strings.TrimSuffix(part, ".scope")
	if isID(name) {
		if before == "libpod_parent" { // a pod of Podman's
			return ""
		}
		return name
	}
	if at := strings.LastIndexAny(name, "-:"); at >= 0 && isID(name[at+1:]) {
		return name[at+1:]
	}
	return ""
}

// nameOf returns s where LXC takes it as a name. Whoever is root in a container can
// make cgroups whose names hold anything.
func nameOf(s string) string {
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && c != '-' && c != '_' && c != '.' {
			return ""
		}
	}
	return s
}

// monitors reports whether a directory is of a runtime's own process beside a
// container: crio-conmon-ID.scope, libpod-conmon-ID.scope, conmon, lxc.monitor.NAME.
func monitors(part string) bool {
	return part == "conmon" || strings.HasPrefix(part, "crio-conmon-") ||
		strings.HasPrefix(part, "libpod-conmon-") || strings.HasPrefix(part, "lxc.monitor.")
}

// idLength is that of the ids that containerd, CRI-O, Docker and Podman give.
const idLength = 64

func isID(s string) bool { return len(s) == idLength && isHex(s) }

// uid returns s where it is a pod's UID.
func uid(s string) string {
	switch {
	case len(s) == 32 && isHex(s):
		return s
	case len(s) == 36 && s[8] == '-' && s[13] == '-' && s[18] == '-' && s[23] == '-' &&
		isHex(s[:8]+s[9:13]+s[14:18]+s[19:23]+s[24:]):
		return s
	}
	return ""
}

func isHex(s string) bool {
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}
