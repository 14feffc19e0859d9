// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// Stamped by the linker (-ldflags -X), written by nobody else.
var version, commit string

// build says what was built: what make stamped, or else what the Go command
// knew of the source.
type build struct {
	Schema  int    `json:"schema"`
	Version string `json:"version"`
	Commit  string `json:"commit"`
	Go      string `json:"go"`
}

func thisBuild() build {
	b := build{Schema: schema, Version: version, Commit: commit, Go: runtime.Version()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	if b.Version == "" {
		b.Version = strings.Trim(info.Main.Version, "()")
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && b.Commit == "" {
			b.Commit = s.Value
		}
	}
	b.Version = cmp.Or(b.Version, "devel")
	b.Commit = cmp.Or(b.Commit, "unknown")
	return b
}

func newVersion(e *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show the version of this program",
		Long:  "Show the version of this program, the commit it was built from and the Go version.",
		Example: `  sockhealth version
  sockhealth version -o json`,
		Args: noArgs,
	}
	output := addOutput(cmd, table, asJSON)
	cmd.RunE = func(*cobra.Command, []string) error {
		b := thisBuild()
		if output.value == asJSON {
			return writeJSON(e.stdout, b)
		}
		_, err := fmt.Fprintf(e.stdout, "sockhealth %s, commit %s, %s\n", b.Version, b.Commit, b.Go)
		return err
	}
	return cmd
}
