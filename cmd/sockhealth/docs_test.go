// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// commands calls fn for every command that help shows.
func commands(root *cobra.Command, fn func(*cobra.Command)) {
	for _, cmd := range root.Commands() {
		if !cmd.Hidden {
			fn(cmd)
			commands(cmd, fn)
		}
	}
}

func testRoot() *cobra.Command {
	return newRoot(&env{stdin: strings.NewReader(""), stdout: io.Discard, stderr: io.Discard})
}

// builtTree returns the flags of each command as docs/cli.md has them:
// "-o, --output table|json" and the default.
func builtTree() map[string]map[string]string {
	// Defaults that are no words of the command line are described.
	described := map[string]string{"--cgroup PATH": "the root of the cgroup v2 hierarchy"}
	tree := make(map[string]map[string]string)
	commands(testRoot(), func(cmd *cobra.Command) {
		flags := make(map[string]string)
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Name == "help" {
				return
			}
			name := "--" + f.Name
			if f.Shorthand != "" {
				name = "-" + f.Shorthand + ", " + name
			}
			if kind, _ := pflag.UnquoteUsage(f); kind != "" {
				name += " " + kind
			}
			value := f.DefValue
			if value == "" || value == "0" {
				value = "none"
			}
			if d, ok := described[name]; ok {
				value = d
			}
			flags[name] = value
		})
		tree[cmd.CommandPath()] = flags
	})
	return tree
}

var (
	docHeading = regexp.MustCompile("^## `(sockhealth .*)`$")
	docFlag    = regexp.MustCompile("^\\| ((?:`-.`, )?`--[^|]*(?:\\\\\\|[^|]*)*`) \\| ([^|]*) \\| [^|]")
	docExit    = regexp.MustCompile(`^\| ([0-9]+) \| .`)
)

// documentedTree reads docs/cli.md.
func documentedTree(t *testing.T) (tree map[string]map[string]string, exits []string) {
	b, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	tree = make(map[string]map[string]string)
	command := ""
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSuffix(line, "\n")
		if m := docHeading.FindStringSubmatch(line); m != nil {
			command = m[1]
			tree[command] = make(map[string]string)
		}
		if m := docFlag.FindStringSubmatch(line); m != nil {
			plain := strings.NewReplacer("`", "", `\|`, "|")
			tree[command][plain.Replace(m[1])] = plain.Replace(m[2])
		}
		if m := docExit.FindStringSubmatch(line); m != nil {
			exits = append(exits, m[1])
		}
	}
	return tree, exits
}

// The page names every command and flag with its default, and none that is not.
func TestDocs(t *testing.T) {
	tree, exits := documentedTree(t)
	if d := cmp.Diff(builtTree(), tree); d != "" {
		t.Errorf("docs/cli.md (-program +page):\n%s", d)
	}
	var want []string
	for _, code := range []int{exitOK, exitFailed, exitUsage, exitUnreachable, exitMissing} {
		want = append(want, fmt.Sprint(code))
	}
	if d := cmp.Diff(want, exits); d != "" {
		t.Errorf("exit codes in docs/cli.md (-program +page):\n%s", d)
	}
}

// Every command has what its help needs, the hidden ones too.
func TestHelpComplete(t *testing.T) {
	n := 0
	var check func(cmd *cobra.Command)
	check = func(cmd *cobra.Command) {
		n++
		if cmd.Short == "" || cmd.Long == "" || !strings.Contains(cmd.Example, "sockhealth") {
			t.Errorf("%s lacks a short, a long text or an example", cmd.CommandPath())
		}
		if strings.HasSuffix(cmd.Short, ".") {
			t.Errorf("%s: short text ends with a full stop", cmd.CommandPath())
		}
		for _, sub := range cmd.Commands() {
			check(sub)
		}
	}
	check(testRoot())
	if n < 20 {
		t.Errorf("only %d commands", n)
	}
}
