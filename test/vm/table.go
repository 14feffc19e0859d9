// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sockhealth/sockhealth/internal/kernel"
)

// The lines of a document between which the table stands, and those between which stands
// what was found on another architecture.
const (
	tableBegin   = "<!-- The table is made by `make vm-table` from what `make vm` found. -->"
	tableEnd     = "<!-- End of the table. -->"
	foreignBegin = "<!-- This is made by `make vm-table` from what `make vm KERNEL=6.1-arm64` found. -->"
	foreignEnd   = "<!-- End of what was found. -->"
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
			out, err := document(string(text), rs)
			if err != nil {
				return fmt.Errorf("write the table into %s: %w", args[0], err)
			}
			return os.WriteFile(args[0], []byte(out), 0o644)
		},
	}
	cmd.Flags().StringVar(&results, "results", "bin/vm/results", "folder of what was found")
	return cmd
}

// readResults reads what was found, in the order of the kernels: under every kernel of
// the table, and on other architectures what is there.
func readResults(dir string) ([]*result, error) {
	var out []*result
	var missing []string
	for _, k := range kernels {
		raw, err := os.ReadFile(filepath.Join(dir, k.name+".json"))
		r := &result{Kernel: k.name}
		switch {
		case errors.Is(err, os.ErrNotExist) && r.foreign():
			continue
		case errors.Is(err, os.ErrNotExist):
			missing = append(missing, k.name)
			continue
		case err != nil:
			return nil, err
		}
		if err := json.Unmarshal(raw, r); err != nil {
			return nil, fmt.Errorf("read the result of kernel %s: %w", k.name, err)
		}
		if len(r.checks()) == 0 {
			return nil, fmt.Errorf("the result of kernel %s has no report of doctor [see %s, and run: %s]", k.name, filepath.Join(dir, k.name+"-the_others.log"), r.again())
		}
		out = append(out, r)
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("%s has no result of kernel %s [run: make vm]", dir, strings.Join(missing, ", "))
	}
	return out, nil
}

// document puts results into a document: the table, and what was found on another
// architecture, which has a version of its own. Where that was not looked at what the
// document says of it stays.
func document(text string, rs []*result) (string, error) {
	var columns []*result
	for _, r := range rs {
		if !r.foreign() {
			columns = append(columns, r)
		}
	}
	version, err := sameVersion(columns)
	if err != nil {
		return "", err
	}
	text, err = replace(text, tableBegin, tableEnd, supportTable(columns)+"\nFound by version `"+version+"`.\n")
	for _, r := range rs {
		if err != nil || !r.foreign() {
			continue
		}
		if _, err = sameVersion([]*result{r}); err == nil {
			text, err = replace(text, foreignBegin, foreignEnd, r.sentences(columns))
		}
	}
	return text, err
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
	for _, name := range allChecks(rs) {
		cells := []string{"`" + name + "`", since(name)}
		for _, r := range rs {
			cells = append(cells, r.cell(name))
		}
		row(cells...)
	}
	row(tests...)
	return b.String()
}

// allChecks lists the checks of any result, each behind the one that it follows there.
func allChecks(rs []*result) []string {
	var out []string
	for _, r := range rs {
		at := 0
		for _, name := range r.checks() {
			if i := slices.Index(out, name); i >= 0 {
				at = i + 1
				continue
			}
			out = slices.Insert(out, at, name)
			at++
		}
	}
	return out
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

// replace puts something between two lines of a document.
func replace(text, begin, end, between string) (string, error) {
	before, rest, ok := strings.Cut(text, begin+"\n")
	if !ok {
		return "", fmt.Errorf("no line %q", begin)
	}
	_, after, ok := strings.Cut(rest, end+"\n")
	if !ok {
		return "", fmt.Errorf("no line %q", end)
	}
	return before + begin + "\n" + between + end + "\n" + after, nil
}
