// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"log"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/doctor"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
)

// alone runs sockhealth, which its first argument names, with a /proc of its own
// process id namespace: what security modules of the machine say about other
// processes is none of the test's business.
func alone() {
	err := errors.Join(
		unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""),
	)
	if err != nil {
		log.Fatal(err)
	}
	os.Args = os.Args[1:]
	main()
}

// On a machine that runs these tests all works.
func TestDoctor(t *testing.T) {
	labtest.Root(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, output := range []string{table, asJSON} {
		cmd := exec.CommandContext(t.Context(), exe)
		cmd.Args = []string{"alone", "sockhealth", "doctor", "-o", output} // see TestMain
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
		var stderr strings.Builder
		cmd.Stderr = &stderr
		stdout, err := cmd.Output()
		if err != nil || stderr.String() != "" {
			t.Fatalf("-o %s: %v, %s%s", output, err, stderr.String(), stdout)
		}
		if output == table {
			if n := strings.Count(string(stdout), "works  "); n != strings.Count(string(stdout), "\n")-1 {
				t.Errorf("not all works:\n%s", stdout)
			}
			continue
		}
		var d diagnosisJSON
		if err := json.Unmarshal(stdout, &d); err != nil {
			t.Fatal(err)
		}
		names := make(map[string]bool)
		for _, c := range d.Checks {
			names[c.Name] = c.Status == "works" && c.Detail != ""
		}
		for _, want := range []string{
			"kernel", "btf", "CAP_BPF", "CAP_PERFMON", "CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_SYS_ADMIN", "cgroup", "namespaces",
			"programs", "netns", "inet_diag", "look", "scan", "provoke", "raw_probe", "destroy",
		} {
			if !names[want] {
				t.Errorf("%s does not work, or is missing: %+v", want, d.Checks)
			}
		}
		if d.Schema != 1 || d.Status != "works" || len(names) != 17 {
			t.Errorf("got %+v", d)
		}
	}
}

func TestDoctorExits(t *testing.T) {
	for status, want := range map[doctor.Status]int{doctor.Works: 0, doctor.Degraded: 1, doctor.Missing: 4} {
		if code := exitCode(lacks(status)); code != want {
			t.Errorf("%s: exit code %d, want %d", status, code, want)
		}
	}
}

// What is lost and what helps stand below their check.
func TestCheckRows(t *testing.T) {
	var out strings.Builder
	err := writeTable(&out, checkRows([]doctor.Check{
		{Name: "kernel", Status: doctor.Works, Detail: "6.18"},
		{Name: "destroy", Status: doctor.Degraded, Detail: "not supported", Lost: "closing", Remedy: "build it in"},
	}))
	want := `STATUS    CHECK    FOUND
works     kernel   6.18
degraded  destroy  not supported
                   lost: closing
                   [build it in]
`
	if d := cmp.Diff(want, out.String()); err != nil || d != "" {
		t.Errorf("%v, -want +got:\n%s", err, d)
	}
}
