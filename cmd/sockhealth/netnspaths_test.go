// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/netns"
)

// name gives a namespace a name, as ip netns add does, in the mount namespace of the
// calling thread.
func name(t *testing.T, path string, ns *netns.NS) {
	t.Helper()
	err := os.WriteFile(path, nil, 0o600)
	if err == nil {
		err = ns.Do(func() error { return unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, "") })
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
}

// A name of --netns that is removed and given to another namespace: the status says while
// it leads nowhere, and the agent acts in the new one as it did in the old one.
func TestNetnsNamedAnew(t *testing.T) {
	labtest.Root(t)
	// The names are in a mount namespace of this thread, which ends with the test. The agent
	// finds them as one finds the host's that is in a container: by way of a process.
	runtime.LockOSThread()
	if err := errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")); err != nil {
		t.Fatal(err)
	}
	a, second := newRunAgent(t), labtest.New(t, lab.Options{})
	app := a.path("app")
	name(t, app, a.Client)
	a.more = []string{"--netns", fmt.Sprintf("/proc/%d/root%s", unix.Gettid(), app)}
	a.start(t)
	degraded := func() bool {
		s := a.status(t)
		return s.Health == "degraded" && slices.ContainsFunc(s.Problems, func(p string) bool {
			return strings.Contains(p, "a path of --netns leads nowhere") && strings.Contains(p, lostNetnsRemedy)
		})
	}
	if degraded() {
		t.Fatalf("degraded from the start: %+v", a.status(t).Problems)
	}
	if err := errors.Join(unix.Unmount(app, 0), os.Remove(app)); err != nil { // not busy: the agent does not hold the mount
		t.Fatal(err)
	}
	labtest.Eventually(t, 30*time.Second, degraded, "the status to say that the path leads nowhere")
	if _, stderr, code := a.output(t, a.ns, "sockets", "--run-dir", "run"); code != exitFailed || !strings.Contains(stderr, "leads nowhere") {
		t.Errorf("sockets: code %d, %s", code, stderr)
	}

	name(t, app, second.Client)
	older, _ := labtest.Pair(t, second, 7100) // outside the cgroup
	a.Lab = second
	if r := a.report(t, older, "0s"); r.Verdict == "gone" {
		t.Errorf("a report from the new namespace: %+v", r)
	}
	labtest.Eventually(t, 30*time.Second, func() bool { return !degraded() }, "the path that leads somewhere again")
	a.awaitLogged(t, "a network namespace took another's place", 1)
}
