// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/sockhealth/sockhealth/internal/lab/labtest"
)

// The variables that make a run another than the small one.
const (
	program   = "SOCKHEALTH_BIN"          // the agent
	countVar  = "SOCKHEALTH_JUDGE_COUNT"  // connections; the run is one at length
	seedVar   = "SOCKHEALTH_JUDGE_SEED"   // of all that is random
	reportVar = "SOCKHEALTH_JUDGE_REPORT" // the file that the table goes to
)

// TestMain builds the agent and prints the table of a run at length last, or makes the
// test binary one of the processes beside it, where it is called by that name.
func TestMain(m *testing.M) {
	switch os.Args[0] {
	case reporterName:
		os.Exit(reporter())
	case peerName:
		os.Exit(peer(os.Args[1:]))
	}
	os.Exit(withAgent(m))
}

// withAgent runs the test with an agent to run. Without root none is needed.
func withAgent(m *testing.M) int {
	if os.Geteuid() != 0 {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "sockhealth-judge-")
	if err == nil {
		defer os.RemoveAll(dir)
		err = provide(filepath.Join(dir, "sockhealth"))
	}
	table := filepath.Join(dir, "table")
	if err == nil && os.Getenv(countVar) != "" {
		err = os.Setenv(reportVar, table)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if text, err := os.ReadFile(table); err == nil {
		fmt.Printf("\n%s", text)
	}
	return code
}

// provide names the agent that stands beside the test, or builds one.
func provide(path string) error {
	if os.Getenv(program) != "" {
		return nil
	}
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
