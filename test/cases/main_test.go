// SPDX-License-Identifier: Apache-2.0

package cases

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/sockhealth/sockhealth/internal/lab/labtest"
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
	if beside, ok := labtest.Beside("sockhealth"); ok {
		return os.Setenv(program, beside)
	}
	build := exec.Command("go", "build", "-o", path, "github.com/sockhealth/sockhealth/cmd/sockhealth")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the agent: %w: %s", err, out)
	}
	return os.Setenv(program, path)
}
