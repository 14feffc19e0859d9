// SPDX-License-Identifier: Apache-2.0

package cases

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// program is the variable that names the agent.
const program = "SOCKHEALTH_BIN"

// TestMain builds the agent, or makes the test binary one of the processes that
// hold connections, where it is called by that name.
func TestMain(m *testing.M) {
	if os.Args[0] == "holder" {
		hold()
		return
	}
	os.Exit(withAgent(m))
}

// withAgent runs the tests with an agent to run. Without root none is needed.
func withAgent(m *testing.M) int {
	if os.Geteuid() != 0 || os.Getenv(program) != "" {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "sockhealth-cases-")
	if err == nil {
		defer os.RemoveAll(dir)
		err = provide(filepath.Join(dir, "sockhealth"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// provide names the agent that stands beside the tests, or builds one.
func provide(path string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	beside := filepath.Join(filepath.Dir(self), "sockhealth")
	if _, err := os.Stat(beside); err == nil {
		return os.Setenv(program, beside)
	}
	if out, err := build(path); err != nil {
		return fmt.Errorf("build the agent: %w: %s", err, out)
	}
	return os.Setenv(program, path)
}

// build builds the agent, with further flags of go build.
func build(path string, flags ...string) (output []byte, err error) {
	args := append([]string{"build", "-o", path}, flags...)
	cmd := exec.Command("go", append(args, "github.com/sockhealth/sockhealth/cmd/sockhealth")...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	return cmd.CombinedOutput()
}
