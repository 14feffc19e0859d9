// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"
)

// sentences say what was found on another architecture, beside the same kernel's column
// of the table.
func (r *result) sentences(columns []*result) string {
	name, arch, _ := strings.Cut(r.Kernel, "-")
	var b strings.Builder
	fmt.Fprintf(&b, "Under Debian's %s for %s, emulated, version `%s` was run. `doctor` found %s.\n", r.series(), arch, r.Version, r.against(name, columns))
	skipped := 0
	for _, n := range r.Skipped {
		skipped += n
	}
	fmt.Fprintf(&b, "Of the tests %d passed, %s, and %d were skipped", r.Passed, r.failures(), skipped)
	if r.Bad == 0 {
		b.WriteString("; the demo ended well.\n")
	} else {
		fmt.Fprintf(&b, "; of the %d machines that ran them and the demo %d did not end well.\n", r.Machines, r.Bad)
	}
	return b.String()
}

// against says what doctor found otherwise than under a kernel of the table.
func (r *result) against(kernel string, columns []*result) string {
	i := slices.IndexFunc(columns, func(c *result) bool { return c.Kernel == kernel })
	if i < 0 {
		return "what no column of the table can be held against"
	}
	column := columns[i]
	var differ []string
	for _, name := range allChecks([]*result{column, r}) {
		if here, there := r.cell(name), column.cell(name); here != there {
			differ = append(differ, fmt.Sprintf("`%s` (%s here, %s there)", name, here, there))
		}
	}
	if len(differ) == 0 {
		return "the same as in the table's column"
	}
	return "the same as in the table's column but for " + strings.Join(differ, ", ")
}

// failures names the tests that failed.
func (r *result) failures() string {
	if len(r.Failed) == 0 {
		return "none failed"
	}
	var names []string
	for _, test := range r.Failed {
		name, _, _ := strings.Cut(test, " ")
		names = append(names, "`"+name+"`")
	}
	return fmt.Sprintf("%d failed (%s)", len(names), strings.Join(names, ", "))
}
