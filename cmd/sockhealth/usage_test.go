// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Whatever is wrong with a flag, the message names it and says what it takes, in no
// words of the parser, and the exit code is 2. No command runs.
func TestUsageOfEveryFlag(t *testing.T) {
	n := 0
	commands(testRoot(), func(cmd *cobra.Command) {
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Name == "help" {
				return
			}
			n++
			wrong := []string{"--" + f.Name + "=", "--" + f.Name + "=" + "12monkeys"}
			if f.Value.Type() == "string" {
				wrong = wrong[:1] // it takes any word
			}
			if f.NoOptDefVal == "" {
				wrong = append(wrong, "--"+f.Name)
			}
			for _, arg := range wrong {
				args := append(strings.Fields(cmd.CommandPath())[1:], arg)
				text, code := misused(args)
				if code != exitUsage || !strings.HasPrefix(text, "sockhealth: --"+f.Name+" ") {
					t.Errorf("%q: exit code %d, %q", args, code, text)
				}
				if !strings.Contains(text, " is empty: give it a value (") && !strings.Contains(text, ": want ") {
					t.Errorf("%q does not say what it takes: %q", args, text)
				}
				for _, raw := range []string{"strconv", "time:", "parsing", "invalid", "argument"} {
					if strings.Contains(text, raw) {
						t.Errorf("%q is told in the parser's words: %q", args, text)
					}
				}
			}
		})
	})
	if n < 40 {
		t.Errorf("only %d flags", n)
	}
}

// misused executes a command line in a tree whose commands do nothing.
func misused(args []string) (stderr string, code int) {
	var out bytes.Buffer
	e := &env{stdin: strings.NewReader(""), stdout: &bytes.Buffer{}, stderr: &out, args: args}
	root := newRoot(e)
	commands(root, func(cmd *cobra.Command) {
		cmd.Args = cobra.ArbitraryArgs
		cmd.RunE = func(*cobra.Command, []string) error { return errors.New("it runs") }
	})
	code = executeIn(context.Background(), e, root)
	return out.String(), code
}

// What flags go together is said by the commands: cobra would say it in its own words,
// after the command has begun.
func TestNoFlagGroups(t *testing.T) {
	commands(testRoot(), func(cmd *cobra.Command) {
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			for key := range f.Annotations {
				if key != cobra.BashCompFilenameExt {
					t.Errorf("%s --%s is annotated with %s", cmd.CommandPath(), f.Name, key)
				}
			}
		})
	})
}
