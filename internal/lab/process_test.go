// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/lab/labtest"
)

// diesEarly is the variable by which TestStart tells its other process what it is.
const diesEarly = "SOCKHEALTH_LAB_DIES_EARLY"

// TestStart: a process that a test has started ends with the test's process, also
// where nothing is cleaned up.
func TestStart(t *testing.T) {
	labtest.Root(t)
	if os.Getenv(diesEarly) != "" {
		sleeper := exec.Command("sleep", "60")
		sleeper.Stdout = os.Stdout
		labtest.Start(t, labtest.Netns(t), sleeper)
		syscall.Exit(0)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "-test.run=^TestStart$")
	cmd.Env = append(os.Environ(), diesEarly+"=1")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	// The sleeper has the pipe open, too.
	if err := out.(*os.File).SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	for buf := make([]byte, 512); err == nil; {
		_, err = out.Read(buf)
	}
	if os.IsTimeout(err) {
		t.Error("the process that it started lives on")
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}
