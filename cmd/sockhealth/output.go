// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
)

// schema is the version of the JSON that commands make themselves. It changes
// when a field changes its meaning or goes; new fields may come at any time.
const schema = 1

// Output formats.
const (
	table  = "table"
	wide   = "wide"
	asJSON = "json"
)

// choice is a flag with a closed list of values.
type choice struct {
	value string
	of    []string
}

// String, Set and Type make it a pflag.Value.
func (c *choice) String() string { return c.value }

func (c *choice) Set(s string) error {
	if !slices.Contains(c.of, s) {
		return errors.New(c.want())
	}
	c.value = s
	return nil
}

func (c *choice) Type() string { return strings.Join(c.of, "|") }

func (c *choice) want() string { return alternatives(c.of) }

// alternatives writes "table, wide or json".
func alternatives(words []string) string {
	last := len(words) - 1
	if last == 0 {
		return words[0]
	}
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// addOutput gives a command its -o; the first format is the default.
func addOutput(cmd *cobra.Command, formats ...string) *choice {
	c := &choice{value: formats[0], of: formats}
	cmd.Flags().VarP(c, "output", "o", "output format")
	complete(cmd, "output", formats)
	return c
}

// complete offers the values of a flag to the shell.
func complete(cmd *cobra.Command, flag string, values []string) {
	err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	if err != nil {
		panic(err) // the flag is not there: a mistake in this program
	}
}

// writeJSON writes one value, indented.
func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

// writeTable writes rows of equal length in columns. The first is the head.
func writeTable(w io.Writer, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, row := range rows {
		// What a row ends with needs no padding.
		fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

// dash stands for what is not there.
func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// millis writes a time given in milliseconds, "-" for none.
func millis(ms int64) string {
	if ms == 0 {
		return "-"
	}
	return (time.Duration(ms) * time.Millisecond).String()
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
