// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"log"
	"maps"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/doctor"
	"github.com/sockhealth/sockhealth/internal/kernel"
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

// doctorSays runs doctor as the init of a machine of its own, without other
// processes' namespaces, and returns what it prints.
func doctorSays(t *testing.T, output string) (stdout []byte, code int) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe)
	cmd.Args = []string{"alone", "sockhealth", "doctor", "-o", output} // see TestMain
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	stdout, err = cmd.Output()
	if err != nil && !errors.As(err, new(*exec.ExitError)) || (err == nil) != (stderr.String() == "") {
		t.Fatalf("-o %s: %v, %s%s", output, err, stderr.String(), stdout)
	}
	return stdout, cmd.ProcessState.ExitCode()
}

// On a machine that runs these tests all works, except features that its kernel
// is too old for.
func TestDoctor(t *testing.T) {
	labtest.Root(t)
	want := make(map[string]bool)
	for _, name := range []string{
		"kernel", "btf", "CAP_BPF", "CAP_PERFMON", "CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_SYS_ADMIN", "cgroup", "namespaces", "foreign_programs",
		"programs", "netns", "inet_diag", "look", "raw_probe", "destroy",
	} {
		want[name] = true
	}
	maps.Copy(want, expected(t, kernel.Features()))
	stdout, code := doctorSays(t, asJSON)
	var d diagnosisJSON
	if err := json.Unmarshal(stdout, &d); err != nil {
		t.Fatal(err)
	}
	got := make(map[string]bool)
	works := 0
	for _, c := range d.Checks {
		got[c.Name] = c.Status == "works" && c.Detail != ""
		if got[c.Name] {
			works++
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("works (-want +got):\n%s%s", diff, stdout)
	}
	wantStatus, wantCode := "works", 0
	for _, f := range kernel.Features() {
		if !want[f.String()] && f != kernel.Scan && f != kernel.BPFDestroy { // which have a substitute
			wantStatus, wantCode = "degraded", 1
		}
	}
	if d.Schema != 1 || d.Status != wantStatus || code != wantCode {
		t.Errorf("schema %d, status %s, exit code %d; want status %s, %d", d.Schema, d.Status, code, wantStatus, wantCode)
	}
	if stdout, _ = doctorSays(t, table); strings.Count(string(stdout), "works  ") != works {
		t.Errorf("want %d that work:\n%s", works, stdout)
	}
}

// expected says of each feature whether the running kernel ought to have it.
func expected(t *testing.T, features []kernel.Feature) map[string]bool {
	t.Helper()
	running, _, err := kernel.Running()
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string]bool)
	for _, f := range features {
		out[f.String()] = f.Expected(running)
	}
	return out
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
