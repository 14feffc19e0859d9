// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"regexp"
	"strings"
	"sync"
	"time"
)

// job is one machine of a matrix.
type job struct {
	kernel  *installed
	name    string
	binary  binary
	args    []string
	without []string // modules to take away
	append  string   // to the kernel's command line
	doctor  bool     // its output is doctor's report, and any finding is well

	// What came of it.
	status int
	err    error
	took   time.Duration
	output []byte
}

// run boots the machine.
func (j *job) run(ctx context.Context, m *matrix) {
	began := time.Now()
	label := fmt.Sprintf("%-7s %-17s ", j.kernel.name, j.name)
	init, err := initOf(j.kernel.arch)
	if err != nil {
		j.status, j.err = 1, err
		return
	}
	var kept bytes.Buffer
	live := &lines{w: m.out, prefix: label, quiet: j.doctor}
	vm := &machine{
		kernel: j.kernel, cache: m.cache, init: init, program: j.binary.path, args: j.args, dir: j.binary.dir,
		env: []string{"SOCKHEALTH_MUST_RUN=1"}, without: j.without, append: j.append, timeout: m.timeout,
		stdout: io.MultiWriter(&kept, live), stderr: live,
	}
	j.status, j.err = vm.run(ctx)
	live.flush()
	j.took, j.output = time.Since(began).Round(time.Second), kept.Bytes()
	word := "ok"
	if !j.ok() {
		word = fmt.Sprintf("FAILED, status %d", j.status)
	}
	if j.err != nil {
		word += ": " + j.err.Error()
	}
	fmt.Fprintf(m.out, "%s%s (%s)\n", label, word, j.took)
}

// ok says whether the machine ended well. Doctor's exit status says what the
// kernel lacks, which is no fault here.
func (j *job) ok() bool {
	return j.err == nil && (j.status == 0 || j.doctor && j.status == 1)
}

// locked lets several write whole lines.
type locked struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *locked) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}

// noise are the lines of a test that say only that all is well.
var noise = regexp.MustCompile(`^(=== (RUN|PAUSE|CONT|NAME)|\s*--- PASS|PASS\s*$)`)

// lines passes whole lines on, each with a prefix, except noise.
type lines struct {
	w      io.Writer
	prefix string
	quiet  bool
	rest   []byte
}

func (l *lines) Write(b []byte) (int, error) {
	l.rest = append(l.rest, b...)
	for {
		line, rest, ok := bytes.Cut(l.rest, []byte("\n"))
		if !ok {
			return len(b), nil
		}
		l.rest = rest
		l.pass(line)
	}
}

func (l *lines) pass(line []byte) {
	if !l.quiet && !noise.Match(line) {
		fmt.Fprintf(l.w, "%s%s\n", l.prefix, strings.TrimRight(string(line), "\r"))
	}
}

// flush passes on what ended without a line feed.
func (l *lines) flush() {
	if len(l.rest) > 0 {
		l.pass(l.rest)
		l.rest = nil
	}
}
