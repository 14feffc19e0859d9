// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// binary is what a job runs.
type binary struct {
	pkg  string // the tests' package, below the module; "" for the agent
	dir  string // to run it in
	path string
	// beside are what it finds in its own folder, installed what it finds where this
	// machine has it.
	beside, installed []string
}

// with is the binary with arguments.
func (b binary) with(args ...string) program {
	return program{path: b.path, beside: b.beside, installed: b.installed, args: args, dir: b.dir}
}

// cases and judge are the tests that run the agent as it is shipped, and commands those
// of its commands.
const cases, judge, commands = "test/cases", "test/judge", "cmd/sockhealth"

// apart are the packages whose tests have machines of their own, those that take
// longest first. All others share one.
var apart = [][]string{{"internal/loader"}, {commands}, {cases, judge, "internal/prober"}, {"internal/agent"}}

// privileged lists the packages whose tests can reach the kernel: those that
// link the package which enters network namespaces.
func (m *matrix) privileged(ctx context.Context) ([]string, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-test", "-f",
		`{{if .ForTest}}{{.ForTest}}{{range .Deps}} {{.}}{{end}}{{end}}`, "./...")
	cmd.Dir = m.top
	out, err := output(ctx, cmd)
	if err != nil {
		return nil, err
	}
	module, err := m.module(ctx)
	if err != nil {
		return nil, err
	}
	var packages []string
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		entersNetns := slices.ContainsFunc(fields, func(dep string) bool {
			dep, _, _ = strings.Cut(dep, " ") // "PACKAGE [PACKAGE.test]"
			return dep == module+"/internal/netns"
		})
		if entersNetns {
			packages = append(packages, strings.TrimPrefix(fields[0], module+"/"))
		}
	}
	slices.Sort(packages)
	return slices.Compact(packages), nil
}

// module returns the module's path.
func (m *matrix) module(ctx context.Context) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-m")
	cmd.Dir = m.top
	out, err := output(ctx, cmd)
	return strings.TrimSpace(string(out)), err
}

// goTool runs the go command for an architecture, without cgo.
func (m *matrix) goTool(ctx context.Context, arch string, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = m.top
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH="+arch)
	_, err := output(ctx, cmd)
	return err
}
