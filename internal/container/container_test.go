// SPDX-License-Identifier: Apache-2.0

package container_test

import (
	"strings"
	"testing"

	"github.com/sockhealth/sockhealth/internal/container"
)

// Ids as runtimes and the API server give them.
const (
	a   = "5eed917563583925ffdbd40a64efb2aaffe58638e57add8becaf460fe74f5b1c"
	b   = "aaefb9d8feed2d453b543f6d928cede7a4dbefa6a0ae7c9b990dd234c56e93b9"
	pod = "a5c1f8d5-1919-434d-add7-4afaafdaef89"
	// static is the UID of a pod that the kubelet has from a file.
	static = "1864dd0546310be9937c37cf88024cb8"
)

var unit = strings.ReplaceAll(pod, "-", "_")

func TestParse(t *testing.T) {
	for _, tc := range []struct{ name, path, container, pod string }{
		// Kubernetes, systemd.
		{"containerd, burstable", "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + unit + ".slice/cri-containerd-" + a + ".scope", a, pod},
		{"containerd, guaranteed", "/kubepods.slice/kubepods-pod" + unit + ".slice/cri-containerd-" + a + ".scope", a, pod},
		{"cri-o, best effort", "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + unit + ".slice/crio-" + a + ".scope", a, pod},
		{"cri-o with crun", "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + unit + ".slice/crio-" + a + ".scope/container", a, pod},
		{"docker", "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + unit + ".slice/docker-" + a + ".scope", a, pod},
		{"static pod", "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + static + ".slice/crio-" + a + ".scope", a, static},
		{"systemd inside", "/kubepods.slice/kubepods-pod" + unit + ".slice/cri-containerd-" + a + ".scope/system.slice/nginx.service", a, pod},
		{"pod without a container", "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + unit + ".slice", "", pod},
		{"conmon of cri-o", "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + unit + ".slice/crio-conmon-" + a + ".scope", "", pod},
		{"kubelet with systemd, containerd without", "/system.slice/containerd.service/kubepods-burstable-pod" + unit + ".slice:cri-containerd:" + a, a, pod},
		{"kubelet below its own slice", "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod" + unit + ".slice/cri-containerd-" + a + ".scope", a, pod},
		// Kubernetes, cgroupfs.
		{"cgroupfs, burstable", "/kubepods/burstable/pod" + pod + "/" + a, a, pod},
		{"cgroupfs, guaranteed", "/kubepods/pod" + pod + "/" + a, a, pod},
		{"cgroupfs, static pod", "/kubepods/burstable/pod" + static + "/" + a, a, static},
		{"cgroupfs, cri-o", "/kubepods/besteffort/pod" + pod + "/crio-" + a, a, pod},
		// Nodes that are containers: kind, minikube, k3d.
		{"kind, systemd", "/system.slice/docker-" + b + ".scope/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod" + unit + ".slice/cri-containerd-" + a + ".scope", a, pod},
		{"kind, cgroupfs", "/docker/" + b + "/kubelet/kubepods/besteffort/pod" + pod + "/" + a, a, pod},
		{"minikube", "/docker/" + b + "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + unit + ".slice/crio-" + a + ".scope", a, pod},
		{"kind with podman", "/machine.slice/libpod-" + b + ".scope/container/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod" + unit + ".slice/cri-containerd-" + a + ".scope", a, pod},
		{"the node's own", "/system.slice/docker-" + b + ".scope/system.slice/containerd.service", b, ""},
		{"a node in a pod", "/kubepods/pod" + static + "/" + b + "/docker/" + b + "/kubelet/kubepods/pod" + pod + "/" + a, a, pod},
		{"docker in a pod", "/kubepods/burstable/pod" + pod + "/" + a + "/docker/" + b, a, pod},
		// Without Kubernetes.
		{"docker, systemd", "/system.slice/docker-" + a + ".scope", a, ""},
		{"docker, cgroupfs", "/docker/" + a, a, ""},
		{"docker, its own parent", "/apps/" + a, a, ""},
		{"docker, rootless", "/user.slice/user-1000.slice/user@1000.service/user.slice/docker-" + a + ".scope", a, ""},
		{"docker in docker", "/docker/" + b + "/docker/" + a, a, ""},
		{"docker, systemd inside", "/system.slice/docker-" + a + ".scope/init.scope", a, ""},
		{"nerdctl", "/system.slice/nerdctl-" + a + ".scope", a, ""},
		{"containerd", "/default/" + a, a, ""},
		{"ecs", "/ecs/0d4a5b8c-0b2f-4b43-a0ac-3c1f2b0f1d1e/" + a, a, ""},
		{"ecs, systemd", "/ecstasks.slice/ecstasks-0d4a5b8c0b2f4b43a0ac3c1f2b0f1d1e.slice/docker-" + a + ".scope", a, ""},
		{"podman", "/machine.slice/libpod-" + a + ".scope/container", a, ""},
		{"podman, rootless", "/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-" + a + ".scope/container", a, ""},
		{"podman, a pod of its own", "/machine.slice/machine-libpod_pod_" + b + ".slice/libpod-" + a + ".scope", a, ""},
		{"podman, cgroupfs", "/libpod_parent/" + b + "/libpod-" + a, a, ""},
		{"podman, split", "/system.slice/web.service/libpod-payload-" + a, a, ""},
		{"podman in docker, conmon", "/docker/" + b + "/machine.slice/libpod-conmon-" + a + ".scope", b, ""},
		{"lxc", "/lxc.payload.web/system.slice/nginx.service", "web", ""},
		{"lxc before 4.0", "/lxc/web/init.scope", "web", ""},
		{"proxmox", "/lxc/101/ns/init.scope", "101", ""},
		{"docker in lxc", "/lxc.payload.web/system.slice/docker-" + a + ".scope", a, ""},
		// None.
		{"root", "/", "", ""},
		{"nothing", "", "", ""},
		{"service", "/system.slice/nginx.service", "", ""},
		{"user", "/user.slice/user-1000.slice/session-3.scope", "", ""},
		{"runtime", "/system.slice/containerd.service", "", ""},
		{"conmon of podman", "/machine.slice/libpod-conmon-" + a + ".scope", "", ""},
		{"conmon, cgroupfs", "/libpod_parent/" + b + "/conmon", "", ""},
		{"monitor of lxc", "/lxc.monitor.web", "", ""},
		{"all containers of lxc", "/lxc", "", ""},
		{"virtual machine", `/machine.slice/machine-qemu\x2d1\x2dweb.scope`, "", ""},
		{"quality of service", "/kubepods.slice/kubepods-burstable.slice", "", ""},
		// What only looks like one.
		{"pod elsewhere", "/apps/pod" + pod, "", ""},
		{"slice of somebody else", "/machine.slice/machine-pod" + unit + ".slice", "", ""},
		{"uid too short", "/kubepods/burstable/pod" + pod[1:], "", ""},
		{"uid not hexadecimal", "/kubepods/burstable/podx" + pod[1:], "", ""},
		{"uid with other dashes", "/kubepods/burstable/pod" + strings.ReplaceAll(pod, "-", "a"), "", ""},
		{"id too short", "/docker/" + a[1:], "", ""},
		{"id too long", "/docker/" + a + "0", "", ""},
		{"id in capitals", "/docker/" + strings.ToUpper(a), "", ""},
		{"name that drives a terminal", "/lxc.payload.web\x1b[2J", "", ""},
		{"short id of a build", "/docker/buildkit/pz1n9q4s2a8yvhhj2n0vwzk2u", "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got, want := container.Parse(tc.path), (container.ID{Container: tc.container, Pod: tc.pod}); got != want {
				t.Errorf("%s: got %+v, want %+v", tc.path, got, want)
			}
			if got := container.Parse(tc.path + "/"); got != (container.ID{Container: tc.container, Pod: tc.pod}) {
				t.Errorf("with a slash behind: got %+v", got)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add("/kubepods/burstable/pod" + pod + "/" + a)
	f.Add("/system.slice/containerd.service/kubepods-burstable-pod" + unit + ".slice:cri-containerd:" + a)
	f.Add("/lxc.payload.web/lxc/x")
	f.Fuzz(func(t *testing.T, path string) {
		id := container.Parse(path)
		if id.Container != "" && !strings.Contains(path, id.Container) {
			t.Errorf("%q: container %q is not in it", path, id.Container)
		}
		if id.Pod != "" && !strings.Contains(strings.ReplaceAll(path, "_", "-"), id.Pod) {
			t.Errorf("%q: pod %q is not in it", path, id.Pod)
		}
	})
}
