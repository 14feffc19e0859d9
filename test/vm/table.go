// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sockhealth/sockhealth/internal/kernel"
)

// The lines of a document between which the table stands.
const (
	tableBegin = "<!-- The table is made by `make vm-table` from what `make vm` found. -->"
	tableEnd   = "<!-- End of the table. -->"
)

func newTable() *cobra.Command {
	var results string
	cmd := &cobra.Command{
		Use:   "table DOCUMENT",
		Short: "Write what the matrix found into a document",
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			rs, err := readResults(results)
			if err != nil {
				return err
			}
			text, err := os.ReadFile(args[0])
			if err != nil {
				return err
			}
			out, err := replaceTable(string(text), supportTable(rs))
			if err != nil {
				return fmt.Errorf("write the table into %s: %w", args[0], err)
			}
			return os.WriteFile(args[0], []byte(out), 0o644)
		},
	}
	cmd.Flags().StringVar(&results, "results", "bin/vm/results", "folder of what was found")
	return cmd
}

// readResults reads those that are there, in the order of the kernels.
func readResults(dir string) ([]*result, error) {
	var out []*result
	for _, k := range kernels {
		raw, err := os.ReadFile(filepath.Join(dir, k.name+".json"))
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		r := new(result)
		if err := json.Unmarshal(raw, r); err != nil {
			return nil, fmt.Errorf("read the result of kernel %s: %w", k.name, err)
		}
		out = append(out, r)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s holds no results [run: make vm]", dir)
	}
	return out, nil
}

// supportTable has a row for each of doctor's checks and a column for each
// kernel.
func supportTable(rs []*result) string {
	var b strings.Builder
	row := func(cells ...string) { fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | ")) }
	head, rule, tests := []string{"check", "since"}, []string{"---", "---"}, []string{"every privileged test and the demo", ""}
	for _, r := range rs {
		head, rule = append(head, r.series()), append(rule, "---")
		tests = append(tests, r.verdict())
	}
	row(head...)
	row(rule...)
	for _, name := range rs[0].checks() {
		cells := []string{"`" + name + "`", since(name)}
		for _, r := range rs {
			cells = append(cells, r.cell(name))
		}
		row(cells...)
	}
	row(tests...)
	return b.String()
}

// since returns the release that brought a check's feature.
func since(check string) string {
	for _, f := range kernel.Features() {
		if f.String() == check {
			return f.Since().String()
		}
	}
	return kernel.Floor().String()
}

// replaceTable puts the table between the document's two lines.
func replaceTable(text, table string) (string, error) {
	before, rest, ok := strings.Cut(text, tableBegin+"\n")
	if !ok {
		return "", fmt.Errorf("no line %q", tableBegin)
	}
	_, after, ok := strings.Cut(rest, tableEnd+"\n")
	if !ok {
		return "", fmt.Errorf("no line %q", tableEnd)
	}
	return before + tableBegin + "\n" + table + tableEnd + "\n" + after, nil
}
