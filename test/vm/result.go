// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// result is what was found under one kernel.
type result struct {
	Kernel  string
	Release string
	// Version is what was tested, as versionOf says; "" where that is not known.
	Version string
	// Passed counts tests, Machines the machines, Bad those that did not end well.
	Passed, Machines, Bad int
	// Failed are the tests that did, each with what it said last.
	Failed []string
	// Skipped counts tests by the reason they gave.
	Skipped map[string]int
	// Doctor is the report of `sockhealth doctor -o json`.
	Doctor json.RawMessage
	jobs   []*job
}

var (
	ended  = regexp.MustCompile(`^\s*--- (PASS|FAIL|SKIP): (.*)`)
	reason = regexp.MustCompile(`^\s+\S+\.go:\d+: (.*)$`)
)

// gather reads a kernel's results out of its jobs.
func gather(kernel string, jobs []*job) *result {
	r := &result{Kernel: kernel, Skipped: make(map[string]int)}
	for _, j := range jobs {
		if j.kernel.name != kernel {
			continue
		}
		r.Release = j.kernel.release
		r.jobs = append(r.jobs, j)
		r.Machines++
		if !j.ok() {
			r.Bad++
		}
		if j.doctor {
			// What it says on stderr, and the tests, follow its report.
			if err := json.NewDecoder(bytes.NewReader(j.output)).Decode(&r.Doctor); err != nil && j.ok() {
				j.err = fmt.Errorf("read doctor's report: %w", err)
				r.Bad++
			}
		}
		r.count(string(j.output))
	}
	return r
}

// count reads the output of go test -v. A test that is skipped gives its reason
// in the line before, one that failed what it missed.
func (r *result) count(text string) {
	last := ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		if m := reason.FindStringSubmatch(line); m != nil {
			last = m[1]
			continue
		}
		m := ended.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		switch m[1] {
		case "PASS":
			r.Passed++
		case "FAIL":
			r.Failed = append(r.Failed, m[2]+": "+last)
		case "SKIP":
			r.Skipped[last]++
		}
	}
}

// print writes one paragraph.
func (r *result) print(w io.Writer) {
	skipped := 0
	for _, n := range r.Skipped {
		skipped += n
	}
	fmt.Fprintf(w, "\nkernel %s (%s): %d machines, %d failed; tests: %d passed, %d failed, %d skipped\n",
		r.Kernel, r.Release, r.Machines, r.Bad, r.Passed, len(r.Failed), skipped)
	for why, n := range r.Skipped {
		fmt.Fprintf(w, "  skipped %3d: %s\n", n, why)
	}
	for _, test := range r.Failed {
		fmt.Fprintf(w, "  failed: %s\n", test)
	}
	for _, j := range r.jobs {
		if !j.ok() {
			fmt.Fprintf(w, "  failed: %s (status %d)\n", j.name, j.status)
		}
	}
}

// write keeps the result for the table.
func (r *result) write(dir string) error {
	raw, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("keep the result of kernel %s: %w", r.Kernel, err)
	}
	return os.WriteFile(filepath.Join(dir, r.Kernel+".json"), append(raw, '\n'), 0o644)
}
