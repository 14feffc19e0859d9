// SPDX-License-Identifier: Apache-2.0

package reload

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// limitEnv says that this process is in a user namespace of its own, in which a limit is
// to be set to 0.
const limitEnv = "SOCKHEALTH_TEST_LIMIT"

// TestExhausted: where the kernel gives no more of inotify the file is followed all the
// same, and the log says what to do.
func TestExhausted(t *testing.T) {
	if limit := os.Getenv(limitEnv); limit != "" {
		testExhausted(t, limit)
		return
	}
	for _, limit := range []string{"max_inotify_instances", "max_inotify_watches"} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestExhausted$", "-test.v")
		cmd.Env = append(os.Environ(), limitEnv+"="+limit)
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
		}
		out, err := cmd.CombinedOutput()
		if len(out) == 0 && os.Getenv("CI") != "true" && os.Getenv("SOCKHEALTH_MUST_RUN") != "1" {
			t.Skipf("no user namespace of its own: %v", err)
		}
		if err != nil || !strings.Contains(string(out), "--- PASS: TestExhausted") {
			t.Errorf("%s: %v\n%s", limit, err, out)
		}
	}
}

func testExhausted(t *testing.T, limit string) {
	if err := os.WriteFile("/proc/sys/user/"+limit, []byte("0"), 0); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "policy.yaml")
	write(t, path, good)
	r := start(t, path)
	want := "[raise the sysctl fs.inotify." + strings.Replace(limit, "inotify_", "user_", 1) + ", and restart the agent]"
	if got := r.text(); !strings.Contains(got, want) || strings.Count(got, "\n") != 1 {
		t.Errorf("logged %q, want %q", got, want)
	}
	pastTick(t, path)
	write(t, path, other)
	eventually(t, "the new policy", func() bool { return r.inForce() == "b" })
}
