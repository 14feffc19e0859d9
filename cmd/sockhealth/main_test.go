// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"log"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestMain makes the test binary sockhealth itself, where it is called by that
// name.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"sockhealth": main,
		"asnobody":   asNobody,
		"alone":      alone,
		"answerer":   answerer,
	})
}

// asNobody runs sockhealth, which its first argument names, without privileges.
// A process that has none keeps its user.
func asNobody() {
	const nobody = 65534
	if os.Geteuid() == 0 {
		err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(nobody), syscall.Setuid(nobody))
		if err != nil {
			log.Fatal(err)
		}
	}
	os.Args = os.Args[1:]
	main()
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		// SOCKHEALTH_UPDATE=1 go test writes what came into the scripts.
		UpdateScripts: os.Getenv("SOCKHEALTH_UPDATE") == "1",
		Cmds:          map[string]func(*testscript.TestScript, bool, []string){"exits": exits},
	})
}

// exits runs a program that must end with the exit code: exits CODE PROGRAM ARG...
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ARG...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	code := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			ts.Fatalf("run %s: %v", args[1], err)
		}
		code = exit.ExitCode()
	}
	if code != want {
		ts.Fatalf("%q ended with exit code %d, want %d", args[1:], code, want)
	}
}
